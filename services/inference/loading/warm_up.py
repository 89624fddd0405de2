"""Warms up a newly opened backend at growing batch sizes, and measures the latency of each.

In: a backend, its golden rows, its signature, a clock. Out: seconds by batch size.
"""

import time
from collections.abc import Callable, Mapping

from flambeau.protocol.row_form import batch_of
from flambeau.protocol.signature import Signature
from model_store.golden import GoldenRows
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU, Device

BUDGET_S = 0.3
"""Time budget of the batch sizes, which double until it is spent."""
GPU_BUDGET_S = 10.0
"""The same on a GPU: enough for all sizes of most models. ONNX Runtime takes 0.1 s there to plan
the convolutions of a CNN for a new size, and the larger sizes in the certificate are a CPU's, on
which large batches gain little."""

Clock = Callable[[], float]


def warm_up(
    backend: Backend,
    golden: GoldenRows,
    signature: Signature,
    clock: Clock,
    *,
    repeats: int = 1,
    budget_s: float = BUDGET_S,
) -> dict[int, float]:
    """Runs every batch size, so that no request pays for lazy initialization.

    Args:
        backend: backend to run.
        golden: golden rows, repeated to fill a batch.
        signature: most rows to run at once, and the batch axes.
        clock: clock that returns seconds.
        repeats: number of measured runs per size, after one that is not measured.
        budget_s: time after which no further size is started.

    Returns:
        Seconds of the fastest measured run by the clock, by batch size. A run for which a coarse
        clock measured 0 does not count, nor does a size with such runs only.
    """
    latency_s: dict[int, float] = {}
    begun, size, max_batch_size = time.monotonic(), 1, signature.max_batch_size
    while size <= max_batch_size and time.monotonic() - begun < budget_s:
        inputs = batch_of(golden.inputs, signature, size)
        backend.run(inputs)
        taken = []
        for _ in range(repeats):
            started = clock()
            backend.run(inputs)
            taken.append(clock() - started)
        if measured := [seconds for seconds in taken if seconds > 0]:
            latency_s[size] = min(measured)
        size = min(size * 2, max_batch_size) if size < max_batch_size else size + 1
    return latency_s


def load_budget_s(device: Device) -> float:
    """Returns the time budget of a load on a device."""
    return BUDGET_S if device == CPU else GPU_BUDGET_S


def with_certificate(
    measured_s: dict[int, float], certificate_ms: Mapping[int, float]
) -> dict[int, float]:
    """Adds the certificate's larger batch sizes, scaled by the speed ratio of the two machines."""
    known = [size for size in measured_s if certificate_ms.get(size)]
    if not known:
        return measured_s
    scale = measured_s[max(known)] / certificate_ms[max(known)]
    beyond = {size: ms * scale for size, ms in certificate_ms.items() if size > max(measured_s)}
    return measured_s | beyond


def row_ms(latency_s: Mapping[int, float]) -> float:
    """Returns milliseconds per row at the best batch size; infinity if nothing was measured."""
    return min((s / rows * 1000 for rows, s in latency_s.items()), default=float("inf"))
