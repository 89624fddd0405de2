"""How sure a measured share is."""

import math

Z_95 = 1.959964
"""Standard deviations on either side that hold 95 % of a normal distribution."""


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, by Wilson's score.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    Journal of the American Statistical Association 22 (1927).

    Args:
        share: of trials that succeeded, 0 to 1.
        count: of trials; at least 1.
    """
    square = Z_95**2 / count
    middle = (share + square / 2) / (1 + square)
    spread = Z_95 * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(middle - spread, 0.0), min(middle + spread, 1.0)
