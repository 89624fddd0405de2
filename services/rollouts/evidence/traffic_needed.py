"""How much traffic a promotion needs, if it goes on as it is."""

import math
from dataclasses import replace

import numpy as np

from model_store.rollouts.guards import Guards
from services.rollouts.evidence.count_arrays import CountArrays
from services.rollouts.evidence.e_processes import LIVE, Array
from services.rollouts.evidence.weighing import weigh

DOUBLINGS = 21
"""Traffic that would have to grow further is none that helps."""
_SECTIONS = 64
USUAL_SHARE = 0.1
"""The candidate's share, where no traffic has shown one."""


def factor_needed(name: str, counts: CountArrays, guards: Guards) -> float | None:
    """Returns by which factor the counts must grow to prove that a guard is kept; None if none."""

    def first_that_proves(factors: Array) -> float | None:
        proves = weigh(name, counts.times(factors), guards).supporting >= -math.log(guards.risk)
        return float(factors[proves.argmax()]) if proves.any() else None

    high = first_that_proves(np.exp2(np.arange(1, DOUBLINGS)))
    if high is None:
        return None
    return first_that_proves(np.linspace(high / 2, high, _SECTIONS + 1))


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
