"""The interface of a store of jobs and their events.

In: jobs as `transitions` returned them. Out: the same. A store implements only one rule of jobs: it
replaces a revision of a job only if no other change has replaced it before. `sqlite_store` and
`redis_store` are the two implementations; one test suite runs on both.
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
"""The topic of newly queued jobs."""

READ_AT_ONCE = 100
"""Number of jobs per page."""


class Bell:
    """Wakes tasks that wait for a change, by topic: `QUEUE`, or a job's id."""

    def __init__(self) -> None:
        self._listening: dict[str, set[asyncio.Event]] = defaultdict(set)

    @contextlib.contextmanager
    def heard(self, topic: str) -> Iterator[asyncio.Event]:
        """Yields an event that is set at every change; clear it before reading the store."""
        event = asyncio.Event()
        self._listening[topic].add(event)
        try:
            yield event
        finally:
            self._listening[topic].discard(event)
            if not self._listening[topic]:
                del self._listening[topic]

    def ring(self, topic: str) -> None:
        """Wakes the tasks that wait for a topic."""
        for event in self._listening.get(topic, ()):
            event.set()

    def ring_all(self) -> None:
        """Wakes all waiting tasks, because changes may have been missed."""
        for topic in self._listening:
            self.ring(topic)


class JobStore(Protocol):
    """Stores jobs. Every call may raise `QueueUnavailableError`: the store is unavailable."""

    bell: Bell
    """Rings for changes that this process knows of."""
    look_every_s: float
    """Longest delay before a change by another process is noticed."""

    async def now(self) -> float:
        """Returns the store's time, by which leases are measured."""

    async def create(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """Stores a new job; returns False, and changes nothing, if its id exists."""

    async def find(self, job_id: str) -> TrainingJob:
        """Returns a job.

        Raises:
            UnknownJobError: there is none.
        """

    async def swap(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """Replaces a job's preceding revision, and appends events, atomically.

        Returns:
            False, with nothing changed, if another change was first.
        """

    async def append(self, job_id: str, holder: str, events: Sequence[JobEvent]) -> bool:
        """Appends events of the job's worker; returns False if it no longer holds the job."""

    async def events(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        """Returns events with numbers larger than `after`, the oldest first."""

    async def newest(self, state: State | None, limit: int) -> list[TrainingJob]:
        """Returns the newest jobs first; only those in a state, if one is given."""

    async def oldest(self, state: State, limit: int, skip: int = 0) -> list[TrainingJob]:
        """Returns the jobs in a state, the oldest first, without the first `skip`."""

    async def counts(self) -> dict[State, int]:
        """Returns the number of jobs in each state."""

    async def forget(self, job_id: str) -> None:
        """Deletes a job with all its events."""

    async def run(self) -> None:
        """Listens for changes by other processes, until cancelled."""

    async def close(self) -> None:
        """Closes its connections and files."""


async def each_in(
    store: JobStore, state: State, at_once: int = READ_AT_ONCE
) -> AsyncIterator[TrainingJob]:
    """Yields every job in a state, the oldest first, read in pages of `at_once`.

    If a job leaves the state meanwhile, another may be missed until the next call.

    Raises:
        QueueUnavailableError: the store is unavailable.
    """
    skip = 0
    while page := await store.oldest(state, at_once, skip):
        for job in page:
            yield job
        skip += at_once


async def change(
    store: JobStore, job_id: str, rule: Callable[[TrainingJob], Change | None]
) -> tuple[TrainingJob, bool]:
    """Applies a transition to a job, and retries after concurrent changes.

    Args:
        store: store of the job.
        job_id: id of the job.
        rule: one of `transitions`.

    Returns:
        The current job, and True if the transition applied.

    Raises:
        UnknownJobError: there is no such job.
        QueueUnavailableError: the store is unavailable.
    """
    while True:
        job = await store.find(job_id)
        found = rule(job)
        if found is None:
            return job, False
        if await store.swap(*found):
            return found[0], True


def no_such_job(job_id: str) -> UnknownJobError:
    """Returns the error for a job that does not exist."""
    return UnknownJobError(
        f"job '{job_id[:80]}' does not exist, or has expired; `flambeau train list` shows them"
    )
