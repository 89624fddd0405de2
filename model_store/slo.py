"""Service level objectives of a version. Pure rules.

Source of alerts (`flambeau alerts`). `flambeau/monitoring/rules.py` defines how they are measured.
"""

from pydantic import ConfigDict, Field, field_validator

from flambeau.protocol.strict import StrictModel

LATENCIES_MS = (
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0,
    10000.0,
)  # fmt: skip
"""Possible values of `latency_ms`: the bucket bounds of the request duration histogram."""


class Slo(StrictModel):
    """Shares of requests that must succeed, and finish in time, over 30 days."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    availability: float = Field(default=0.999, gt=0, lt=1)
    """Share of requests that do not fail because of the server. Raise it for models on a critical
    path; it also lowers the failure rate that triggers an alert."""
    latency_ms: float = 250.0
    """Latency limit in milliseconds, from the last byte of a request to the first byte of its
    response. Set it to the longest that callers can tolerate."""
    latency_share: float = Field(default=0.99, gt=0, lt=1)
    """Share of requests within the limit. Lower it for models whose request sizes vary widely."""

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
"""Objectives of versions that set none."""
