"""How much traffic a promotion needs, if it goes on as it is."""

import math
from dataclasses import replace

import numpy as np

from model_store.rollouts.guards import Guards
from services.rollouts.evidence.count_arrays import CountArrays
from services.rollouts.evidence.e_processes import LIVE
from services.rollouts.evidence.weighing import weigh

LARGEST_FACTOR = 2.0**20
USUAL_SHARE = 0.1
"""The candidate's share, where no traffic has shown one."""
_STEPS = 12


def factor_needed(name: str, counts: CountArrays, guards: Guards) -> float | None:
    """Returns by which factor the counts must grow to prove that a guard is kept; None if none."""

    def proves(factor: float) -> bool:
        return float(weigh(name, counts.times(factor), guards).supporting) >= needed

    needed = -math.log(guards.risk)
    high = 2.0
    while not proves(high):
        high *= 2
        if high > LARGEST_FACTOR:
            return None
    low = high / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if proves(middle) else (middle, high)
    return high


def observed(name: str, counts: CountArrays) -> int:
    """Returns the number of observations of a guard."""
    total = {
        "errors": counts.requests,
        "nan": counts.requests - counts.errors,
        "outputs": counts.outputs,
        "disagreement": counts.pairs,
        "latency": counts.latencies[..., LIVE, :],
    }[name]
    return int(total.sum())


def with_ideal_traffic(counts: CountArrays) -> CountArrays:
    """Returns counts of ten requests and one pair as good as can be, for guards without any."""
    shares = np.array([USUAL_SHARE])
    split = 10 * np.stack([shares, 1 - shares], axis=-1)
    values = counts.outputs.shape[-1]
    pairs = np.zeros_like(counts.pairs)
    pairs[0] = 1
    return replace(
        counts,
        shares=shares,
        requests=split,
        errors=np.zeros_like(split),
        nan=np.zeros_like(split),
        outputs=np.broadcast_to(split[..., None] / values, (*split.shape, values)),
        pairs=pairs,
    )
