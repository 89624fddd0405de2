"""E-processes: how strongly counts speak against a hypothesis, at any moment and at every moment.

Counts come in as arrays whose last axes are named below; leading axes, such as that of simulated
rollouts, are kept. Natural logarithms of e-values go out. An e-process is a gambler's wealth in a
game that is fair or worse if the hypothesis is true: it starts at 1, and the probability that it
ever reaches 1/risk is at most the risk (Ville 1939; Ramdas, Grünwald, Vovk and Shafer, arXiv
2210.01948).

The gambler's stakes are fixed mixtures, so the wealth depends on counts and not on their order.
No distribution is assumed: each hypothesis is about an observation's mean given what came before.
"""

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CANDIDATE, LIVE = 0, 1
"""Places on the axis of versions."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Alternatives among which a gambler divides the first unit of wealth."""

    odds_ratios: tuple[float, ...]
    """Odds under each alternative, divided by those under the hypothesis; above 1."""
    weights: tuple[float, ...]
    """Shares of the wealth, up to a factor."""


EVEN = Mixture((1.1, 1.3, 2, 4, 10, 30, 100), (1, 1, 1, 1, 1, 1, 1))
SLIGHTLY = Mixture((1.2, 1.6, 2.5, 6), (1, 1, 1, 1))
"""For quantiles."""
MANY_TIMES = Mixture((2, 4, 10), (0.5, 1, 4))
"""For rates of failures: a broken version fails many times as often as the live one."""
A_FEW_TIMES = Mixture((1.5, 2, 3, 5, 12), (0.3, 0.7, 1, 6, 0.5))
"""For disagreement. This one and the one above were chosen by `make simulate-rollouts`."""
STAKES = np.geomspace(0.0005, 0.95, 24)
"""Shares of the wealth at stake where a mean is sought and not held against a limit."""
FEW = 2**14
"""Numbers whose sum takes fewer microseconds over all columns at once than column by column."""
CENTRES = (0.0, 0.5, 1.0)
"""Constants near to the means of values in [0, 1]."""


def log_mean_above(counts: Array, values: Array, limit: float, mixture: Mixture = EVEN) -> Array:
    """Weighs observations in [0, 1] against "their mean is at most `limit`".

    For zeros and ones these are likelihood ratios of Bernoulli observations. Source: Waudby-Smith
    and Ramdas, "Estimating means of bounded random variables by betting", arXiv 2010.09686.

    Args:
        counts: observations of each value, [..., values].
        values: the values, [values].
        limit: above 0, below 1.
        mixture: alternatives to bet on.
    """
    ratios = np.asarray(mixture.odds_ratios)
    stakes = limit * (ratios - 1) / (1 - limit + limit * ratios)
    return log_wealth(counts, values, limit, stakes, np.asarray(mixture.weights))


def log_mean_below(counts: Array, values: Array, limit: float, mixture: Mixture = EVEN) -> Array:
    """Weighs observations in [0, 1] against "their mean is at least `limit`", as above."""
    return log_mean_above(counts, 1 - values, 1 - limit, mixture)


def log_wealth(
    counts: Array, values: Array, mean: float | Array, stakes: Array, weights: Array
) -> Array:
    """Returns the wealth of bets on a mean above `mean`, with a share `stakes` of it in each.

    It falls as `mean` grows, so that its level sets are intervals. Several means, [means], get a
    wealth each; then the counts have no leading axes.
    """
    factors = np.log1p(stakes * (values[:, None] / np.asarray(mean)[..., None, None] - 1))
    return _mixed(counts @ factors, weights)


def log_share_above(
    events: Array, shares: Array, ratio: float, mixture: Mixture = MANY_TIMES
) -> Array:
    """Weighs events against "the candidate's rate is at most `ratio` times the live version's".

    Given that an event happened, was it the candidate's? The split of the traffic and the ratio
    imply the largest probability of that, whatever the rate of requests and of events is. Source:
    Lindon and Malek, "Anytime-valid inference for multinomial count data", arXiv 2011.03567.

    Args:
        events: of the candidate and of the live version, by share of traffic, [..., shares, 2].
        shares: the candidate's shares of the traffic, [shares], above 0 and below 1.
        ratio: tolerated quotient of the rates.
        mixture: alternatives to bet on.
    """
    odds = shares * ratio / (1 - shares)
    alternative = odds[:, None] * np.asarray(mixture.odds_ratios)
    live = np.log1p(odds)[:, None] - np.log1p(alternative)
    candidate = live + np.log(mixture.odds_ratios)
    factors = np.stack([candidate, live], axis=1)
    logs = np.tensordot(events, factors, axes=([-2, -1], [0, 1]))
    return _mixed(logs, np.asarray(mixture.weights))


def log_share_below(
    events: Array, shares: Array, ratio: float, mixture: Mixture = MANY_TIMES
) -> Array:
    """Weighs events against "the candidate's rate is at least `ratio` times the live one's"."""
    return log_share_above(events[..., ::-1], 1 - shares, 1 / ratio, mixture)


def log_share_wealth(events: Array, shares: Array, ratios: Array) -> Array:
    """Returns the wealth of bets on a quotient of rates above each ratio; it falls as that grows.

    Args:
        events: of the candidate and of the live version, by share of traffic, [shares, 2].
        shares: the candidate's shares of the traffic, [shares], above 0 and below 1.
        ratios: [ratios].
    """
    odds = shares * ratios[:, None]
    probability = (odds / (odds + 1 - shares))[..., None]
    candidate = np.log1p(STAKES * (1 / probability - 1))
    live = np.broadcast_to(np.log1p(-STAKES), candidate.shape)
    factors = np.stack([candidate, live], axis=-2).reshape(len(ratios), -1, len(STAKES))
    return _mixed(events.reshape(-1) @ factors, np.ones(len(STAKES)))


def log_difference_above(
    counts: Array, values: Array, shares: Array, difference: float | Array
) -> Array:
    """Weighs values against "the candidate's mean exceeds the live one's by `difference` at most".

    A request's value, divided by the probability with which its version was drawn and negative for
    the live version, has the difference of the means as its mean; bets on that. It has so too if a
    constant is taken from each value, which lowers its variance where that is near to the mean: the
    wealth is divided among `CENTRES`. It falls as `difference` grows. Source: Waudby-Smith, Wu,
    Ramdas, Karampatziakis and Mineiro, "Anytime-valid off-policy inference for contextual bandits",
    arXiv 2210.10768.

    Args:
        counts: observations by share of traffic, version and value, [..., shares, 2, values].
        values: the values in [0, 1], [values]; zeros count too.
        shares: the candidate's shares of the traffic, [shares], above 0 and below 1.
        difference: above -1, below 1. Several, [differences], get a wealth each; then the counts
            have no leading axes.
    """
    shares, difference = shares[:, None], np.asarray(difference)[..., None, None, None, None]
    flat, wealth = counts.reshape(*counts.shape[:-3], -1), []
    for centre in CENTRES:
        moved = values - centre
        weighted = np.stack([moved / shares, -moved / (1 - shares)], axis=1)[..., None]
        lowest = np.maximum(centre / shares, (1 - centre) / (1 - shares))[..., None, None]
        factors = np.log1p(STAKES * ((weighted + lowest) / (lowest + difference) - 1))
        wealth.append(flat @ factors.reshape(*factors.shape[:-4], -1, len(STAKES)))
    return _mixed(np.concatenate(wealth, axis=-1), np.ones(len(STAKES) * len(CENTRES)))


def averaged(logs: Array) -> Array:
    """Returns the logarithm of a mean of e-values, [..., e-values], which is an e-value too."""
    return _summed(logs) - math.log(logs.shape[-1])


def _mixed(logs: Array, weights: Array) -> Array:
    """Sums the wealth of several gamblers, [..., gamblers]."""
    return _summed(logs + np.log(weights / weights.sum()))


def _summed(logs: Array) -> Array:
    """Sums over the last axis, which is short: NumPy is fast if each step is a large array."""
    if logs.size <= FEW:
        highest = logs.max(-1, keepdims=True)
        return np.asarray(np.log(np.exp(logs - highest).sum(-1)) + highest[..., 0])
    columns = np.moveaxis(logs, -1, 0)
    highest = reduce(np.maximum, columns)
    total = reduce(np.add, (np.exp(column - highest) for column in columns))
    return np.asarray(np.log(total) + highest)
