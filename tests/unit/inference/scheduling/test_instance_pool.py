"""The instances of a lane: which of them the pool retains."""

import gc
import weakref
from unittest.mock import Mock

from services.inference.scheduling.batch_rules import batch_rules
from services.inference.scheduling.instance_pool import InstancePool
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.running_worker import LANE, SIGNATURE


async def test_ended_instances_of_earlier_artifacts_are_forgotten() -> None:
    pool = InstancePool(
        LANE, SIGNATURE, batch_rules(SIGNATURE), [DoublingBackend()], DoublingBackend, 60.0, Mock()
    )
    replaced = []
    for _ in range(5):
        instance = pool.idle[0]
        replaced.append(weakref.ref(instance))
        pool.replace([DoublingBackend()], DoublingBackend)
        instance.join()  # not in another thread, which may keep a reference for longer
        del instance
    gc.collect()
    assert sum(one() is not None for one in replaced) <= 1
    await pool.end()
