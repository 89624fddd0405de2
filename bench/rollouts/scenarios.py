"""Scenarios of simulated rollouts: the true rates of both versions, and when the judge looks."""

from dataclasses import dataclass, field

from model_store.rollouts.guards import Guards

GUARDS = Guards()
"""The defaults, all of them: a scenario that breaks one guard pays for the others' risk too."""

RARELY = 5
"""Looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of candidate."""

    name: str
    looks: int
    """Number of looks at which a rollout ends undecided."""
    share: float = 0.1
    """The candidate's share of the traffic."""
    requests: int = 0
    """Requests between two looks."""
    pairs: int = 0
    """Mirrored pairs between two looks."""
    latency_pairs: int = 0
    """Pairs of latencies between two looks."""
    rarely: tuple[str, ...] = ()
    """Guards that are looked at every `RARELY` looks: those that are slow to compute."""
    error_rates: tuple[float, float] = (0.001, 0.001)
    """Of the candidate and of the live version."""
    nan_rates: tuple[float, float] = (0.0, 0.0)
    outputs: tuple[tuple[float, ...], tuple[float, ...]] = ((0.5, 0.5), (0.5, 0.5))
    """Shares of classes."""
    disagreement: float = 0.0
    slowness: float = 1.0
    """The candidate's latency, divided by the live version's."""
    spread: float = 0.5
    """Standard deviation of the logarithm of a latency."""
    unit: str = field(default="requests")
    """What a figure of this scenario counts."""


GOOD = Scenario(
    name="good candidate",
    looks=50,
    requests=400,
    pairs=40,
    latency_pairs=20,
    rarely=("latency",),
    disagreement=0.002,
)
AT_ITS_LIMITS = Scenario(
    name="a candidate exactly at every limit",
    looks=50,
    requests=400,
    pairs=40,
    latency_pairs=20,
    rarely=("latency",),
    error_rates=(0.0075, 0.005),
    nan_rates=(0.0015, 0.001),
    outputs=((0.55, 0.45), (0.5, 0.5)),
    disagreement=0.01,
    slowness=2 ** (9 / 32),
)
FIVE_PERCENT = Scenario(
    name="5 % disagreement where 1 % is allowed",
    looks=2000,
    pairs=1,
    disagreement=0.05,
    unit="mirrored pairs",
)
TWO_PERCENT = Scenario(
    name="2 % disagreement where 1 % is allowed",
    looks=1000,
    pairs=10,
    disagreement=0.02,
    unit="mirrored pairs",
)
TWENTY_TIMES = Scenario(
    name="20 times the errors (0.1 %), 10 % of the traffic",
    looks=2000,
    requests=20,
    error_rates=(0.02, 0.001),
    rarely=("nan", "outputs"),
)
FIVE_TIMES = Scenario(
    name="5 times the errors (0.1 %), 10 % of the traffic",
    looks=500,
    requests=400,
    error_rates=(0.005, 0.001),
    rarely=("nan", "outputs"),
)
SLOW = Scenario(
    name="1.5 times the latency where 1.2 is allowed",
    looks=60,
    latency_pairs=50,
    slowness=1.5,
    unit="pairs of latencies",
)
NAN = Scenario(
    name="1 % NaN where the live version has none",
    looks=400,
    requests=100,
    nan_rates=(0.01, 0.0),
    rarely=("errors", "outputs"),
)
OTHER_CLASSES = Scenario(
    name="a class 15 points more frequent where 5 are allowed",
    looks=200,
    requests=250,
    rarely=("nan", "errors"),
    outputs=((0.65, 0.35), (0.5, 0.5)),
)
PROMOTED = Scenario(
    name="good candidate at 50 %, promoted",
    looks=60,
    share=0.5,
    requests=1000,
    pairs=100,
    latency_pairs=200,
    rarely=("latency", "outputs", "nan"),
    error_rates=(0.0001, 0.0001),
    disagreement=0.002,
)
SCENARIOS = (
    GOOD, AT_ITS_LIMITS, FIVE_PERCENT, TWO_PERCENT, TWENTY_TIMES, FIVE_TIMES, SLOW, NAN,
    OTHER_CLASSES, PROMOTED,
)  # fmt: skip
