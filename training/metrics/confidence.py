"""How sure a measured metric is."""

import math

import numpy as np
import numpy.typing as npt

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


def ratio_interval(
    parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """The 95 % confidence interval of a ratio of two sums over rows, such as errors by labels.

    Rows are what was drawn: labels of one row may err together. The ratio is linearised and taken
    as normally distributed. Source: W. G. Cochran, "Sampling Techniques", 3rd edition (1977),
    section 6.4.

    Args:
        parts: of each row, what is added above, [N].
        wholes: of each row, what is added below, [N]; their sum is above 0.
    """
    ratio = parts.sum() / wholes.sum()
    spread = Z_95 * math.sqrt(((parts - ratio * wholes) ** 2).sum()) / wholes.sum()
    return float(ratio - spread), float(ratio + spread)


def paired_interval(differences: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean of differences, each of one row under two models.

    By the normal approximation; rows on which both models agree narrow it, which comparing two
    intervals of their own would not see.

    Args:
        differences: [rows], at least one.
    """
    mean, rows = float(differences.mean()), len(differences)
    spread = Z_95 * float(differences.std()) / math.sqrt(rows)
    return mean - spread, mean + spread
