"""Carries what a run tells into the store of jobs, many events in one trip.

In: lines and metrics as they come. Out: events appended under the worker's lease. What cannot be
sent waits; when too much waits, the run that tells it waits too.
"""

import asyncio
from functools import partial

import msgspec

from services.errors import QueueUnavailableError, UnknownJobError
from services.trainer.records import JobEvent, TrainingJob, cut
from services.trainer.stores import transitions
from services.trainer.stores.job_store import JobStore, change

MOST_WAITING = 2000
MOST_AT_ONCE = 500
RETRY_S = 0.5
DRAIN_S = 10.0
"""How long the last events may take once the run has ended."""


class Outbox:
    """See `executor.Listener`.

    Args:
        store: keeps the events.
        job: whose they are, as its worker took it.
    """

    def __init__(self, store: JobStore, job: TrainingJob) -> None:
        self._store = store
        self._job = job
        self._waiting: asyncio.Queue[JobEvent] = asyncio.Queue(MOST_WAITING)
        self._run_folder, self._epoch = "", 0

    async def begun(self, folder: str) -> None:
        """See `Listener.begun`."""
        self._run_folder = folder
        await self.log(f"works in {folder}")

    async def metric(self, epoch: int, metrics: dict[str, float]) -> None:
        """See `Listener.metric`."""
        self._epoch = epoch
        event = JobEvent(attempt=self._job.attempts, kind="metric", epoch=epoch, metrics=metrics)
        await self._waiting.put(event)

    async def log(self, line: str) -> None:
        """See `Listener.log`."""
        await self._waiting.put(JobEvent(attempt=self._job.attempts, kind="log", text=cut(line)))

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            events = [await self._waiting.get()]
            while len(events) < MOST_AT_ONCE and not self._waiting.empty():
                events.append(self._waiting.get_nowait())
            while not await self._sent(events):  # noqa: ASYNC110 - nothing tells of its return
                await asyncio.sleep(RETRY_S)
            for _ in events:
                self._waiting.task_done()

    async def drain(self) -> None:
        """Waits until all is sent, or for so long as is reasonable."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._waiting.join()
        except TimeoutError:
            return

    async def _sent(self, events: list[JobEvent]) -> bool:
        """Whether events need not be sent again: they are there, or nobody wants them any more."""
        job = self._job
        try:
            now = await self._store.now()
            stamped = [msgspec.structs.replace(event, time=now) for event in events]
            if not await self._store.append(job.id, job.holder, stamped):
                return True
            if self._run_folder or self._epoch:
                folder, epoch = self._run_folder, self._epoch
                rule = partial(
                    transitions.progressed, holder=job.holder, run_folder=folder, epoch=epoch
                )
                await change(self._store, job.id, rule)
                self._run_folder, self._epoch = "", 0
        except QueueUnavailableError:
            return False
        except UnknownJobError:
            return True
        return True
