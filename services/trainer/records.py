"""The records of training jobs: what moves between the edges, the stores and the workers.

Times are seconds of Unix time by the clock of the store, so that leases of several machines can be
compared.
"""

from typing import Literal, get_args

import msgspec

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
OVER: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
EventKind = Literal["state", "log", "metric"]
LONGEST_TEXT = 4000
"""Characters of one event; what is longer is cut."""


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a job. Changed only by the rules in `transitions`."""

    id: str
    name: str
    """Of its recipe."""
    model: str
    """Name in the store under which the recipe publishes."""
    recipe: str
    """YAML with every default written out."""
    bundle_sha256: str = ""
    """Of the code that came with it; empty if none did."""
    submitter: str = ""
    """Whose token it was; empty for a caller without one."""
    state: State = "queued"
    created_at: float
    started_at: float | None = None
    """When its first attempt began."""
    finished_at: float | None = None
    attempts: int = 0
    """How often a worker has begun it."""
    deaths: int = 0
    """How many of these ended because the worker was gone, and another took over."""
    worker: str = ""
    """Who runs it, while it runs."""
    holder: str = ""
    """The secret of the present lease: what is said with another one comes too late."""
    lease_until: float = 0.0
    """When another worker may call its worker, or behind the last call take it over, unless the
    lease is renewed."""
    last_call: bool = False
    """Whether its worker was silent for a whole lease and has been called."""
    cancel_asked: bool = False
    """Whether its worker is to end it; of one that is queued, whatever still runs of it."""
    runs_apart: bool = False
    """Whether its run lives on without a worker, as a TrainJob does."""
    resumptions: int = 0
    """How often a person had it go on."""
    run_folder: str = ""
    """Where its checkpoints lie, once it has begun."""
    version: int | None = None
    """The published version, once it has succeeded."""
    error: str = ""
    """Why it failed."""
    epoch: int = 0
    """The last epoch that ended."""
    revision: int = 0
    """Counts its changes; a change must know the one before it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it unless it is resumed."""
        return self.state in OVER


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a job; never changed once it is there."""

    seq: int = 0
    """Counts a job's events from 1; the store gives it."""
    time: float = 0.0
    """When it was kept."""
    attempt: int = 0
    kind: EventKind
    text: str = ""
    """A line of the log, or what became of the job."""
    state: State | None = None
    """Of a `state` event: the state from now on."""
    epoch: int | None = None
    """Of a `metric` event."""
    metrics: dict[str, float] = {}
    """Of a `metric` event: values by name, as in `val/accuracy`."""


def cut(text: str) -> str:
    """A text as an event may have it."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
