"""Follows jobs for clients: one poll of the store for each followed job, whatever its followers.

In: the position of a client in a job's events. Out: pages of the events behind it, as they occur.

Rules:
- a client that is behind reads the store itself, page by page, as fast as it takes them;
- few pages are read at once: what was read is encoded and written in one turn of the event loop;
- clients that have all events wait for the poll of their job, which reads new ones once for all;
- the poll reads the state of the job before its events, so that none is missed at the end.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from services.errors import ServingError
from services.trainer.records import JobEvent
from services.trainer.stores.job_store import JobStore

EVENTS_AT_ONCE = 32
"""Events of a page: one of lines of 1 KB is read, encoded and written within a millisecond."""
PAGES_AT_ONCE = 8
"""Pages that are read at once, and so come to the event loop in one of its turns. With 200, one for
each client that reads a long job, a turn took 300 ms."""

ReadPage = Callable[[str, int], Awaitable[list[JobEvent]]]


class FollowedJob:
    """A job that at least one client follows.

    Args:
        store: store of the job.
        job_id: id of the job.
        read: function that reads a page of its events.
    """

    def __init__(self, store: JobStore, job_id: str, read: ReadPage) -> None:
        self._store, self._job_id, self._read = store, job_id, read
        self.followers = 0
        self.is_over = False
        self._error: ServingError | None = None
        # The newest page that the poll has read, and the position that it follows.
        self._page: list[JobEvent] = []
        self._page_after = self._last = sys.maxsize
        self._changed = asyncio.Event()
        self._poll: asyncio.Task[None] | None = None

    async def pages(self, after: int) -> AsyncIterator[list[JobEvent]]:
        """Yields the events behind a position, until the job is over or `end` is called.

        Raises:
            ServingError: the store is unavailable, or the job has been deleted.
        """
        while True:
            # Both before the events are read, so that none is missed that occurs in between.
            is_over, changed = self.is_over, self._changed
            while events := await self._behind(after):
                after = events[-1].seq
                yield events
            if self._error is not None:
                raise self._error
            if is_over:
                return
            self._last = min(self._last, after)
            if self._poll is None:
                self._poll = asyncio.create_task(self._watch())
            await changed.wait()

    async def _behind(self, after: int) -> list[JobEvent]:
        if after >= self._page_after:
            return [event for event in self._page if event.seq > after]
        return await self._read(self._job_id, after)

    async def _watch(self) -> None:
        """Polls the store until the job is over."""
        try:
            with self._store.bell.heard(self._job_id) as rung:
                while True:
                    rung.clear()
                    job, after = await self._store.find(self._job_id), self._last
                    events = await self._read(self._job_id, after)
                    if events:
                        self._page, self._page_after, self._last = events, after, events[-1].seq
                        self._wake()
                    elif job.is_over:
                        return
                    else:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._store.look_every_s):
                                await rung.wait()
        except ServingError as error:
            self._error = error
        finally:
            self.end()

    def end(self) -> None:
        """Ends the pages of all followers behind the events that are there."""
        self.is_over = True
        self._wake()

    def stop(self) -> None:
        """Stops the poll: nobody follows the job."""
        if self._poll is not None:
            self._poll.cancel()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class FollowedJobs:
    """All followed jobs.

    Args:
        store: store of the jobs.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._jobs: dict[str, FollowedJob] = {}
        self._reads = asyncio.Semaphore(PAGES_AT_ONCE)

    async def page(self, job_id: str, after: int) -> list[JobEvent]:
        """Returns the next events of a job behind a position; none if there are no more.

        Raises:
            QueueUnavailableError: the store is unavailable.
        """
        async with self._reads:
            return await self._store.events(job_id, after, EVENTS_AT_ONCE)

    @contextlib.contextmanager
    def following(self, job_id: str) -> Iterator[FollowedJob]:
        """Yields a job, which is polled while anybody follows it."""
        job = self._jobs.get(job_id)
        if job is None or job.is_over:  # one that was over may have been resumed
            job = self._jobs[job_id] = FollowedJob(self._store, job_id, self.page)
        job.followers += 1
        try:
            yield job
        finally:
            job.followers -= 1
            if not job.followers:
                job.stop()
                if self._jobs.get(job_id) is job:
                    del self._jobs[job_id]

    def end(self) -> None:
        """Ends all followers, behind the events that are there."""
        for job in self._jobs.values():
            job.end()
