"""The newest verdict on a rollout, as the controller has written it beside the versions.

    <url>/<model>/rollouts/<id>/verdict.json

In: bytes of that file, which may be anything. Out: a record, with each guard in words.
"""

import math
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from flambeau.protocol.strict import StrictModel
from model_store.document import LARGE
from model_store.rollouts.finding_text import finding_text
from model_store.storage.storage import Storage
from model_store.storage.stored_document import stored_document

MAX_FINDINGS = 16
MAX_FIGURES = 64


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite)]
"""None for an infinity or a NaN, which JSON does not have."""
Word = Annotated[str, Field(max_length=64)]


class _OfController(StrictModel):
    model_config = ConfigDict(extra="ignore")  # a newer controller may write more


class StoredFinding(_OfController):
    """Evidence about one guard; see `services.rollouts.evidence.verdict.Finding`."""

    guard: Word
    state: Literal["broken", "kept", "open"]
    log_e_against: Number = None
    log_e_to_roll_back: Number = None
    log_e_for: Number = None
    log_e_to_promote: Number = None
    observed: int = Field(ge=0)
    unit: Word
    more: int | None = None
    figures: dict[Word, Number] = Field(default={}, max_length=MAX_FIGURES)

    def document(self) -> dict[str, Any]:
        """Returns plain values for JSON, and the finding in words."""
        found = self.model_dump(mode="json")
        return {**found, "text": finding_text(found)}


class StoredCounts(_OfController):
    """Requests, errors and NaN by share and version, and mirrored pairs."""

    shares: dict[Word, dict[Word, dict[Word, int]]] = Field(default={}, max_length=MAX_FIGURES)
    pairs: int = 0
    differing_pairs: int = 0


class StoredVerdict(_OfController):
    """The newest verdict on a rollout."""

    decision: Literal["roll_back", "promote", "undecided"]
    reason: Annotated[str, Field(max_length=1000)]
    guard: Word | None = None
    more_requests: int | None = None
    findings: tuple[StoredFinding, ...] = Field(default=(), max_length=MAX_FINDINGS)
    when: datetime
    process: Annotated[str, Field(max_length=256)] = ""
    next_why: Annotated[str, Field(max_length=1000)] = ""
    """Why the rollout stays at its step, or moves on."""
    counts: StoredCounts = StoredCounts()
    processes: int = 0
    """Processes whose counts were read."""

    def document(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            **self.model_dump(mode="json", exclude={"findings"}),
            "findings": [finding.document() for finding in self.findings],
        }


def verdict_path(model: str, rollout_id: str) -> str:
    """Returns the path of a verdict in its store."""
    return f"{model}/rollouts/{rollout_id}/verdict.json"


def stored_verdict(storage: Storage, model: str, rollout_id: str) -> StoredVerdict | None:
    """Reads the newest verdict on a rollout; None if there is none yet.

    Raises:
        DocumentError: it is damaged.
        StorageError: the store cannot be read.
    """
    return stored_document(storage, verdict_path(model, rollout_id), StoredVerdict, LARGE)
