"""Candidates that crash, hang, or answer only some inputs: each rollout ends and says why.

The callers have keys of the baseline's share, so the candidate gets their requests only mirrored;
none of them may notice it.
"""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from model_store.rollouts import transitions
from model_store.rollouts.guards import DisagreementGuard, Guards, RateGuard
from model_store.rollouts.traffic import Rollout
from model_store.store import ModelStore
from services.gateway.traffic.draw import point_of
from tests.e2e.rest_calls import infer, linear_input
from tests.fixtures import python_models
from tests.fixtures.misbehaving_models import WIDTH
from tests.fixtures.python_models import DOUBLING
from tests.fixtures.servers import ServerProcess, running_processes, running_server

FAULTY = """
import os, time

class Model:
    def infer(self, inputs):
        value = int(inputs["x"].max())
        if value >= 20:
            {fault}
        return {{"y": 2 * inputs["x"]}}
"""
FAULTS = {
    "exits": "os._exit(7)",
    "sleeps": "time.sleep(3600)",
    "raises for half of the inputs": "if value % 2: raise RuntimeError('odd')",
    "refuses half of the inputs": "if value % 2: raise ValueError('odd')",
}
LONG = {"exits", "refuses half of the inputs"}
SHAPES: dict[str, Any] = {"all-in-one": running_server, "several processes": running_processes}
GUARDS = Guards(
    errors=RateGuard(rate=0.05), disagreement=DisagreementGuard(limit=0.05),
    latency=None, nan=None, outputs=None,
)  # fmt: skip
SHARE = 0.1
OVER_S = 120.0


@pytest.mark.parametrize(
    "shape", ["all-in-one", pytest.param("several processes", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in FAULTS]
)
def test_faulty_candidate_ends_its_rollout_and_harms_no_caller(
    tmp_path: Path, fault: str, shape: str
) -> None:
    store = ModelStore(str(tmp_path))
    python_models.publish(store.url, "m", DOUBLING)
    python_models.publish(store.url, "m", FAULTY.format(fault=FAULTS[fault]))
    store.promote("m", 1)
    rollout = Rollout(
        candidate=2, baseline=1, steps=(SHARE, 1.0), every_s=3600, sticky="header:x-user",
        mirrored=1.0, guards=GUARDS,
    )  # fmt: skip
    users = [name for n in range(40) if point_of(rollout.id, name := f"user-{n}") >= SHARE]
    settings = {"m": {"execution_timeout_s": 1.0}}
    with SHAPES[shape](tmp_path, model_settings=settings, store_poll_interval_s=0.1) as server:
        server.wait_for_log(message="version ready", model="m", version=2)
        store.point("m", transitions.begun(store.pointers("m"), rollout, "test", ""))
        statuses = ask_until_over(server, store, users)
        assert statuses == {200}
        last = store.pointers("m")
        assert last is not None
        assert last.aliases == {"production": 1}
        assert last.why.startswith("the guard 'disagreement' is broken: ")
        log = server.wait_for_log(message="rollout moved", result="rolled_back")
        assert log["reason"] == last.why


def ask_until_over(server: ServerProcess, store: ModelStore, users: Sequence[str]) -> set[int]:
    """Sends requests of these users until no rollout is left; returns the statuses."""
    statuses, deadline = set(), time.monotonic() + OVER_S
    for user, value in zip(itertools.cycle(users), itertools.cycle((21, 22, 23)), strict=False):
        reply = infer(server, "m", linear_input([value] * WIDTH), headers={"x-user": user})
        statuses.add(reply.status)
        now = store.pointers("m")
        if now is not None and not now.traffic:
            return statuses
        assert time.monotonic() < deadline, now
    raise AssertionError("the users never end")
