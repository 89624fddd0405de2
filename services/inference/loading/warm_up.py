"""Runs a backend that was just opened at growing batch sizes, and measures how long each takes.

In: a backend, its golden inputs, the largest batch, a clock. Out: seconds by batch size.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np

from model_store.golden import GoldenRows
from services.inference.backends.backend import Backend

BUDGET_S = 0.3
"""How long it may take: every batch size in turn, doubling, until it is spent."""

Clock = Callable[[], float]


def warm_up(
    backend: Backend,
    golden: GoldenRows,
    max_batch_size: int,
    clock: Clock,
    *,
    repeats: int = 1,
    budget_s: float = BUDGET_S,
) -> dict[int, float]:
    """Runs every batch size, so that no caller pays for lazy set-up.

    Args:
        backend: what to run.
        golden: its inputs, repeated as often as a batch has need of.
        max_batch_size: the most rows to run at once.
        clock: gives seconds.
        repeats: runs of a size that are measured, after one that is not.
        budget_s: no further size is begun once this is spent.

    Returns:
        Seconds of the fastest measured run by the clock, by batch size.
    """
    latency_s: dict[int, float] = {}
    begun, size = time.monotonic(), 1
    while size <= max_batch_size and time.monotonic() - begun < budget_s:
        inputs = {n: np.resize(a, (size, *a.shape[1:])) for n, a in golden.inputs.items()}
        backend.run(inputs)
        taken = []
        for _ in range(repeats):
            started = clock()
            backend.run(inputs)
            taken.append(clock() - started)
        latency_s[size] = min(taken)
        size = min(size * 2, max_batch_size) if size < max_batch_size else size + 1
    return latency_s


def with_certificate(
    measured_s: dict[int, float], certificate_ms: Mapping[int, float]
) -> dict[int, float]:
    """Adds the certificate's larger batch sizes, scaled by how the two machines compare."""
    known = [size for size in measured_s if certificate_ms.get(size)]
    if not known:
        return measured_s
    scale = measured_s[max(known)] / certificate_ms[max(known)]
    beyond = {size: ms * scale for size, ms in certificate_ms.items() if size > max(measured_s)}
    return measured_s | beyond


def row_ms(latency_s: Mapping[int, float]) -> float:
    """Milliseconds a row at the best batch size; infinite if nothing was measured."""
    return min((s / rows * 1000 for rows, s in latency_s.items()), default=float("inf"))
