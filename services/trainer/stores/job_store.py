"""Where jobs and their events are kept, whatever keeps them.

In: jobs as `transitions` made them. Out: the same. A store knows no rule of jobs but one: a job is
swapped for another only if nobody has swapped it before. `sqlite_store` and `redis_store` are the
two implementations; one suite of tests runs on both.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol

from services.errors import UnknownJobError
from services.trainer.records import JobEvent, State, TrainingJob
from services.trainer.stores.transitions import Change

QUEUE = "queue"
"""The topic of jobs that begin to wait."""

READ_AT_ONCE = 100
"""Jobs read in one go."""


class Bell:
    """Wakes who waits for a change, by topic: `QUEUE`, or a job's id."""

    def __init__(self) -> None:
        self._listening: dict[str, set[asyncio.Event]] = defaultdict(set)

    @contextlib.contextmanager
    def heard(self, topic: str) -> Iterator[asyncio.Event]:
        """An event that is set at every change; to be cleared before looking."""
        event = asyncio.Event()
        self._listening[topic].add(event)
        try:
            yield event
        finally:
            self._listening[topic].discard(event)
            if not self._listening[topic]:
                del self._listening[topic]

    def ring(self, topic: str) -> None:
        """Something has changed."""
        for event in self._listening.get(topic, ()):
            event.set()

    def ring_all(self) -> None:
        """Changes may have been missed."""
        for topic in self._listening:
            self.ring(topic)


class JobStore(Protocol):
    """Keeps jobs. Every call may raise `QueueUnavailableError`: it is out of reach."""

    bell: Bell
    """Rings for changes that this process learns of."""
    look_every_s: float
    """How long a change made by another process may go unheard."""

    async def now(self) -> float:
        """The time by which leases are measured."""

    async def create(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """Keeps a new job; False if there is one with its id, which then stays as it is."""

    async def find(self, job_id: str) -> TrainingJob:
        """What is known of a job.

        Raises:
            UnknownJobError: there is none.
        """

    async def swap(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """Puts a job in the place of its revision before, and appends events, in one step.

        Returns:
            False if another was faster; nothing has changed then.
        """

    async def append(self, job_id: str, holder: str, events: Sequence[JobEvent]) -> bool:
        """Appends events of the job's worker; False if it does not hold the job any more."""

    async def events(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        """Events with larger numbers, the oldest first."""

    async def newest(self, state: State | None, limit: int) -> list[TrainingJob]:
        """The newest jobs first; only those in a state, if one is given."""

    async def oldest(self, state: State, limit: int, skip: int = 0) -> list[TrainingJob]:
        """Those in a state, the oldest first, behind the first `skip`."""

    async def counts(self) -> dict[State, int]:
        """How many there are in each state."""

    async def forget(self, job_id: str) -> None:
        """Drops a job with all its events."""

    async def run(self) -> None:
        """Hears of what other processes change, until cancelled."""

    async def close(self) -> None:
        """Lets go of what it has open."""


async def each_in(
    store: JobStore, state: State, at_once: int = READ_AT_ONCE
) -> AsyncIterator[TrainingJob]:
    """Every job in a state, the oldest first, read so many at a time.

    One that leaves the state meanwhile may hide another, until the next time.

    Raises:
        QueueUnavailableError: the store is out of reach.
    """
    skip = 0
    while page := await store.oldest(state, at_once, skip):
        for job in page:
            yield job
        skip += at_once


async def change(
    store: JobStore, job_id: str, rule: Callable[[TrainingJob], Change | None]
) -> tuple[TrainingJob, bool]:
    """Applies a rule to a job, however many others change it.

    Args:
        store: keeps it.
        job_id: of the job.
        rule: one of `transitions`.

    Returns:
        The job as it is now, and whether the rule applied.

    Raises:
        UnknownJobError: there is no such job.
        QueueUnavailableError: the store is out of reach.
    """
    while True:
        job = await store.find(job_id)
        found = rule(job)
        if found is None:
            return job, False
        if await store.swap(*found):
            return found[0], True


def no_such_job(job_id: str) -> UnknownJobError:
    """What to raise of a job that is not there."""
    return UnknownJobError(
        f"there is no job '{job_id[:80]}', or it was forgotten; `flambeau train list` shows them"
    )
