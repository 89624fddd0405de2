"""Rules for sampling a model's requests, and their selection: a part of the settings."""

from collections.abc import Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from flambeau.protocol.strict import StrictModel
from model_store.samples.payload_sample import PARTS, SampleLimits

LINE_BYTES_PER_BYTE = 2
"""Largest ratio of a sample's JSON to its bytes: base64 takes 4/3, and the rest is small."""


class PayloadRule(StrictModel):
    """The sampling rule of models whose names match one pattern."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    share: float = Field(default=0.01, gt=0, le=1)
    """The share of requests that is sampled; 1 for all that the rate allows."""
    max_per_minute: float = Field(default=60.0, gt=0, le=600_000)
    """Most samples a minute that each gateway takes of one model."""
    max_sample_bytes: int = Field(default=64 * 2**10, ge=1024, le=4 * 2**20)
    """Bytes of values in one sample, inputs and outputs together; a tensor that does not fit beside
    smaller ones is sampled as statistics alone. Raise it for images: copying 4 MiB takes the
    event loop some tenths of a millisecond."""
    kept_mib: int = Field(default=64, ge=1, le=2**20)
    """Most MiB of samples that the store keeps for one model; the oldest are deleted first."""
    kept_days: float = Field(default=7.0, gt=0, le=3650)
    """Longest retention of a sample, in days; lower it where a law or a policy requires it."""
    keep: Literal["shapes", "statistics", "numbers", "everything"] = "numbers"
    """Kept parts of tensors: names, datatypes and shapes; also statistics; or the values of all
    but BYTES; or those as well, which are text that people wrote, or their files."""
    redact: tuple[str, ...] = ()
    """Names or patterns of inputs and outputs of which only datatype and shape are kept."""

    @model_validator(mode="after")
    def _holds_some(self) -> "PayloadRule":
        least = LINE_BYTES_PER_BYTE * PARTS * self.max_sample_bytes
        if self.kept_mib * 2**20 < least:
            raise ValueError(
                f"kept_mib is {self.kept_mib}, which is too little for samples of "
                f"{self.max_sample_bytes} bytes (max_sample_bytes): give at least "
                f"{-(-least // 2**20)}, or smaller samples"
            )
        return self

    def limits(self) -> SampleLimits:
        """Returns the limits of the store."""
        return SampleLimits(
            kept_bytes=self.kept_mib * 2**20, kept_for=timedelta(days=self.kept_days)
        )

    def redacts(self, name: str) -> bool:
        """Returns True if only the datatype and shape of an input or output may be kept."""
        return any(fnmatchcase(name, pattern) for pattern in self.redact)


def rule_of(rules: Mapping[str, PayloadRule], model: str) -> PayloadRule | None:
    """Returns the rule of the first pattern that a model's name matches; None if none does."""
    return next((rule for pattern, rule in rules.items() if fnmatchcase(model, pattern)), None)
