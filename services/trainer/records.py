"""The records of training jobs, which the edges, the stores and the workers exchange.

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
"""Maximum characters of one event; a longer text is truncated."""


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job. Changed only by the rules in `transitions`."""

    id: str
    name: str
    """Name of its recipe."""
    model: str
    """Name in the store under which the recipe publishes."""
    recipe: str
    """Recipe as YAML, with all defaults."""
    bundle_sha256: str = ""
    """Digest of the submitted code; empty if there is none."""
    submitter: str = ""
    """Name of the client that submitted it; empty for an unauthenticated client."""
    state: State = "queued"
    created_at: float
    started_at: float | None = None
    """Start of its first attempt."""
    finished_at: float | None = None
    attempts: int = 0
    """Number of attempts that workers have started."""
    deaths: int = 0
    """Number of attempts whose worker died and another took over."""
    worker: str = ""
    """Name of the worker that runs it, while it runs."""
    holder: str = ""
    """Secret of the current lease: updates with another secret are too late and ignored."""
    lease_until: float = 0.0
    """Expiry of the lease, unless it is renewed: then another worker may give a last call, and
    after the last call take the job over."""
    last_call: bool = False
    """True if its worker did not renew the lease and was given a last call."""
    cancel_asked: bool = False
    """True if its worker is to end it; if it is queued, any run that still exists is to end."""
    runs_apart: bool = False
    """True if its run survives its worker, as a TrainJob does."""
    resumptions: int = 0
    """Number of times that a user resumed it."""
    run_folder: str = ""
    """Folder of its checkpoints, once it has started."""
    version: int | None = None
    """The published version, once it has succeeded."""
    error: str = ""
    """Reason of its failure."""
    epoch: int = 0
    """The last finished epoch."""
    revision: int = 0
    """Number of changes; a change must name the preceding revision."""

    @property
    def is_over(self) -> bool:
        """True if nothing more happens to it unless it is resumed."""
        return self.state in OVER


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a job; immutable once stored."""

    seq: int = 0
    """Sequence number among the job's events, from 1; assigned by the store."""
    time: float = 0.0
    """Time at which it was stored."""
    attempt: int = 0
    kind: EventKind
    text: str = ""
    """A line of the log, or a description of the change of state."""
    state: State | None = None
    """The new state, in a `state` event."""
    epoch: int | None = None
    """The epoch, in a `metric` event."""
    metrics: dict[str, float] = {}
    """Values by name, as in `val/accuracy`, in a `metric` event."""


def cut(text: str) -> str:
    """Truncates a text to the maximum length of an event."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
