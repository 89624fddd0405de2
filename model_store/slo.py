"""Service level objectives of a version: what its callers may count on. Pure rules.

Alerts are made of them (`flambeau alerts`). How they are measured: `flambeau/monitoring/rules.py`.
"""

from pydantic import ConfigDict, Field, field_validator

from model_store.strict import StrictModel

LATENCIES_MS = (
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0,
    10000.0,
)  # fmt: skip
"""Milliseconds that can be told apart: the bounds of the histogram of requests."""


class Slo(StrictModel):
    """What shares of requests must be answered, and answered in time, over 30 days."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    availability: float = Field(default=0.999, gt=0, lt=1)
    """Share of requests that do not fail for a reason of ours. Raise it for models that others
    wait for; the share of failures beyond which somebody is called falls with it."""
    latency_ms: float = 250.0
    """Milliseconds, from the last byte of a request to the first of its reply, that count as in
    time. Take what callers can bear."""
    latency_share: float = Field(default=0.99, gt=0, lt=1)
    """Share of requests that must be in time. Lower it for models whose requests differ a lot."""

    @field_validator("latency_ms")
    @classmethod
    def _is_measured(cls, value: float) -> float:
        if value not in LATENCIES_MS:
            nearest = min(LATENCIES_MS, key=lambda bound: abs(bound - value))
            known = ", ".join(f"{bound:g}" for bound in LATENCIES_MS)
            raise ValueError(
                f"{value:g} is not measured; take {nearest:g}, or another of {known} milliseconds"
            )
        return value


DEFAULT_SLO = Slo()
"""Of versions that say nothing else."""
