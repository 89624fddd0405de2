"""Batch sizes that are run before the first request, on a device that is slow at first."""

import time
from collections.abc import Mapping

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from model_store.golden import GoldenRows
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU, Device
from services.inference.loading.warm_up import load_budget_s, warm_up
from tests.fixtures.signatures import one_to_one


class CapturesEachSize(Backend):
    """Takes 0.2 s for the first run of a size, and 1 ms after it, by a clock of its own."""

    platform = "none"

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: set[int] = set()

    def clock(self) -> float:
        return self.now

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = len(inputs["x"])
        self.now += 1e-3 if rows in self.seen else 0.2
        self.seen.add(rows)
        return {"y": inputs["x"]}

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("device", "sizes"), [(CPU, [1, 2]), (Device("cuda", 0), [1, 2, 4, 8, 16, 32, 64])]
)
def test_a_gpu_has_the_time_to_run_every_size(
    monkeypatch: pytest.MonkeyPatch, device: Device, sizes: list[int]
) -> None:
    backend = CapturesEachSize()
    monkeypatch.setattr(time, "monotonic", backend.clock)
    rows = np.ones((3, 4), np.float32)
    latency_s = warm_up(
        backend,
        GoldenRows(inputs={"x": rows}, outputs={"y": rows}),
        one_to_one((4,), rows=64),
        backend.clock,
        budget_s=load_budget_s(device),
    )
    assert list(latency_s) == sizes
    assert max(latency_s.values()) < 0.01


class _Coarse(CapturesEachSize):
    """Rows take 1 ms each; its clock shows steps of 4 ms."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.now += len(inputs["x"]) * 1e-3
        return {"y": inputs["x"]}

    def clock(self) -> float:
        return self.now // 4e-3 * 4e-3


def test_a_run_that_a_coarse_clock_measured_as_nothing_does_not_count() -> None:
    backend, rows = _Coarse(), np.ones((3, 4), np.float32)
    golden = GoldenRows(inputs={"x": rows}, outputs={"y": rows})
    once = warm_up(backend, golden, one_to_one((4,), rows=4), backend.clock)
    assert list(once) == [4]
    often = warm_up(backend, golden, one_to_one((4,), rows=4), backend.clock, repeats=4)
    assert set(often) == {1, 2, 4}
    assert list(often.values()) == pytest.approx([4e-3] * 3)
