"""Record of a job: an asynchronous request whose outcome is kept."""

from dataclasses import dataclass
from typing import Literal

from services.queueing.memory_queue import Outcome
from services.queueing.records import Lane

State = Literal["queued", "running", "done", "failed", "cancelled", "expired"]
OVER: frozenset[State] = frozenset({"done", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The record of a job. Times are seconds of Unix time, by Redis' clock."""

    id: str
    lane: Lane
    state: State
    created_at: float
    deadline: float
    finished_at: float | None = None
    outcome: Outcome | None = None
    """Set once it is `done` or `failed`."""
    webhook: str = ""
