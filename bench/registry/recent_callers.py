"""`python -m bench.registry.recent_callers`: what counting callers costs a request.

Counts requests of 32 callers in turn, of 1 to 7 rows, as the inference path does. Prints medians
over the rounds, beyond the same loop without counting, in microseconds of CPU time: of a request at
20,000 a second, of one that is only counted, and of one that is looked at.
"""

import time
from statistics import median

from flambeau.protocol.signature import Signature, TensorSpec
from services.registry.callers.recent_callers import LOOK_EVERY_S, MAX_CALLERS, RecentCallers

ROUNDS, REQUESTS = 15, 100_000
EACH_S = {
    "at 20,000 a second": 5e-5,
    "only counted": 1e-12,
    "looked at": LOOK_EVERY_S,
}
"""Time between two requests."""
SHAPES = [(rows, 64) for rows in range(1, 8)]
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 64)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 10)),),
    max_batch_size=64,
)
NAMES = [f"key:{number}" for number in range(MAX_CALLERS)]


def counted_s(callers: RecentCallers | None, begin_s: float, each_s: float) -> float:
    """Returns seconds of a round."""
    began, now = time.thread_time(), begin_s
    for number in range(REQUESTS):
        now += each_s
        name = NAMES[number % MAX_CALLERS]
        if callers is not None and callers.is_due("digits", name, now):
            inputs = [("x", "FP32", SHAPES[number % 7])]
            callers.look("digits", name, inputs, (), is_step=False, signature=SIGNATURE, now=now)
    return time.thread_time() - began


def main() -> None:
    """Measures and prints."""
    for what, each_s in EACH_S.items():
        callers, costs = RecentCallers(), []
        for number in range(ROUNDS):
            begin_s = number * REQUESTS * each_s
            bare = counted_s(None, begin_s, each_s)
            costs.append((counted_s(callers, begin_s, each_s) - bare) / REQUESTS * 1e6)
        print(f"{median(costs):.2f} µs ({min(costs):.2f} to {max(costs):.2f}) a request {what}")


if __name__ == "__main__":
    main()
