"""Guards: what may be worse about a candidate, and by how much. Plain data, validated.

Each has a weight, its part of the risk; guards that are None are not judged, and have no part.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Weight = Annotated[float, Field(gt=0, le=1)]


class _Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RateGuard(_Limits):
    """A rate of failures, against that of the live version on the same traffic."""

    ratio: float = Field(default=1.5, ge=1, le=1000)
    """Tolerated quotient of the rates. A smaller one needs more traffic for a promotion."""
    rate: float = Field(default=0.001, gt=0, lt=1)
    """Rate that is tolerated whatever the live version's is. Without failures, a promotion needs
    about 5 divided by it of requests."""
    weight: Weight = 0.49


class DisagreementGuard(_Limits):
    """Mean disagreement with the live version on mirrored pairs."""

    limit: float = Field(default=0.01, gt=0, lt=1)
    """Tolerated mean: the share of pairs that differ, or the mean of 1 minus the agreement."""
    weight: Weight = 0.42


class LatencyGuard(_Limits):
    """Quantiles of latency, against those of the live version in the same blocks of time."""

    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(0.5, 0.99), min_length=1, max_length=8
    )
    """A quantile of 0.99 needs some thousand pairs, 0.5 some hundred."""
    ratio: float = Field(default=1.2, gt=1, le=1000)
    """Tolerated quotient of the quantiles; it is rounded up by at most 2.2 %."""
    weight: Weight = 0.05


class OutputGuard(_Limits):
    """The distribution of outputs, against that of the live version on the same traffic."""

    kind: Literal["classes", "scores"] = "classes"
    """Whether an output is a class or a number between 0 and 1."""
    values: int = Field(default=2, ge=1, le=1000)
    """Number of classes; scores have none."""
    difference: float = Field(default=0.05, gt=0, lt=1)
    """Tolerated difference of a class's share, or of the mean score."""
    weight: Weight = 0.02


class Guards(_Limits):
    """All guards of a rollout."""

    risk: float = Field(default=0.01, gt=0, lt=0.5)
    """Probability that a version within all limits is ever rolled back, and that a version at a
    limit is ever promoted."""
    errors: RateGuard | None = RateGuard()
    disagreement: DisagreementGuard | None = DisagreementGuard()
    latency: LatencyGuard | None = LatencyGuard()
    nan: RateGuard | None = RateGuard(weight=0.02)
    outputs: OutputGuard | None = OutputGuard()

    def shares_of_risk(self) -> dict[str, float]:
        """Returns the part of the risk of each guard that is judged, by name."""
        kinds = (self.errors, self.disagreement, self.latency, self.nan, self.outputs)
        names = ("errors", "disagreement", "latency", "nan", "outputs")
        judged = {n: guard.weight for n, guard in zip(names, kinds, strict=True) if guard}
        return {name: self.risk * w / sum(judged.values()) for name, w in judged.items()}
