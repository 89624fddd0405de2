"""Work at lower priority: a function, its result, error and caller; and the runs of a backend."""

import os
import sys
import threading
from collections.abc import Mapping

import pytest

from flambeau.protocol.tensors import Array
from services.low_priority_thread import NICENESS, STEPS_BELOW_LOOP, run_at_low_priority
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.running_worker import running

if sys.platform != "linux":
    pytest.skip("a thread has a priority of its own on Linux only", allow_module_level=True)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_the_work_is_nicer_than_its_caller_who_stays_as_he_was() -> None:
    before = niceness()
    assert run_at_low_priority(niceness) == min(before + NICENESS, 19)
    assert niceness() == before


def test_an_error_is_the_caller_s() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_at_low_priority(fail)


async def test_a_backend_runs_behind_the_event_loop() -> None:
    seen: list[int] = []

    class Telling(DoublingBackend):
        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            seen.append(niceness())
            return super().run(inputs)

    before = niceness()
    async with running(Telling()) as made:
        assert await made.infer(1.0).values() == [2.0]
    assert seen == [min(before + STEPS_BELOW_LOOP, 19)]
    assert niceness() == before
