"""Confidence intervals of metrics."""

import math

import numpy as np
import numpy.typing as npt

Z_95 = 1.959964
"""Standard deviations on either side that contain 95 % of a normal distribution."""


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a share, by Wilson's score.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    Journal of the American Statistical Association 22 (1927).

    Args:
        share: share of trials that succeeded, 0 to 1.
        count: number of trials; at least 1.
    """
    square = Z_95**2 / count
    middle = (share + square / 2) / (1 + square)
    spread = Z_95 * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(middle - spread, 0.0), min(middle + spread, 1.0)


def ratio_interval(
    parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a ratio of two sums over rows, e.g. errors by labels.

    Rows are the sampling unit: labels of one row may be wrong together. The ratio is linearised and
    taken as normally distributed. Source: W. G. Cochran, "Sampling Techniques", 3rd edition (1977),
    section 6.4.

    Args:
        parts: each row's term of the numerator, [N].
        wholes: each row's term of the denominator, [N]; their sum is above 0.
    """
    ratio = parts.sum() / wholes.sum()
    spread = Z_95 * math.sqrt(((parts - ratio * wholes) ** 2).sum()) / wholes.sum()
    return float(ratio - spread), float(ratio + spread)


def paired_interval(differences: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Returns the 95 % confidence interval of the mean of paired differences of two models.

    It uses the normal approximation; rows on which both models agree narrow it, which a comparison
    of two separate intervals would miss.

    Args:
        differences: one for each row, [rows], at least one.
    """
    mean, rows = float(differences.mean()), len(differences)
    spread = Z_95 * float(differences.std()) / math.sqrt(rows)
    return mean - spread, mean + spread
