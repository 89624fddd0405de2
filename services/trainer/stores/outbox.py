"""Sends the reports of a run to the store of jobs, many events in one batch.

In: lines and metrics as they occur. Out: events appended under the worker's lease. Events that
cannot be sent are queued; if the queue is full, back-pressure blocks the run.
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
"""Timeout of sending the last events once the run has ended."""


class Outbox:
    """Queue of a run's events; implements `executor.Listener`.

    Args:
        store: store of the events.
        job: the job of the run, as its worker took it.
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
        """Waits until all events are sent, or for `DRAIN_S`."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._waiting.join()
        except TimeoutError:
            return

    async def _sent(self, events: list[JobEvent]) -> bool:
        """Sends events. Returns True if no retry is due: they are stored, or the lease is lost."""
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
