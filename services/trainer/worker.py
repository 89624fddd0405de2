"""Takes jobs and runs them until they are finished.

Watch: for every running job whose lease has expired, its worker is given a last call; if it does
not answer, the job is requeued. A run that survived its worker is ended if its job is cancelled.
Take: the worker takes the oldest queued job.
Keep: while a job runs, its lease is renewed. A worker that cannot renew it for a whole lease ends
the run itself, since another may take the job.
Settle: the outcome is written under the lease, so that it is written once. If the store was
unavailable, it is written when it is back, unless another worker has taken the job meanwhile.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from services.errors import QueueUnavailableError, UnknownJobError
from services.trainer.config import TrainerConfig
from services.trainer.executors.executor import Executor, Failed, Outcome, Succeeded
from services.trainer.metrics import TrainerMetrics
from services.trainer.records import TrainingJob
from services.trainer.stores import transitions
from services.trainer.stores.job_store import QUEUE, JobStore, change, each_in
from services.trainer.stores.outbox import Outbox
from services.trainer.stores.transitions import Change

logger = logging.getLogger("flambeau.trainer")

RENEWALS = 3
"""Number of renewals within the duration of a lease."""
RETRY_S = 0.5
End = Literal["lost", "silent", "cancel"]
"""Another worker has the job; the store was unavailable for a whole lease; it is cancelled."""


class TrainingWorker:
    """Runs jobs, up to `jobs_at_once` concurrently.

    Args:
        store: store of the jobs.
        executor: executor of the jobs.
        config: number of concurrent jobs, and duration of a lease.
        metrics: counters of jobs.
        name: unique name of this worker.
    """

    def __init__(
        self,
        store: JobStore,
        executor: Executor,
        config: TrainerConfig,
        metrics: TrainerMetrics,
        name: str,
    ) -> None:
        self._store = store
        self._executor = executor
        self._lease_s = config.lease_s
        self._retry_s = min(RETRY_S, config.lease_s / 10)
        self._slots = config.jobs_at_once
        self._metrics = metrics
        self._name = name
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Takes no more jobs, and leaves those that run to other workers."""
        self._stopping.set()
        self._store.bell.ring(QUEUE)

    async def run(self) -> None:
        """Takes and runs jobs until it is stopped and its jobs have ended."""
        running: set[asyncio.Task[None]] = set()
        look_every_s = min(self._store.look_every_s, self._lease_s / RENEWALS)
        with self._store.bell.heard(QUEUE) as rung:

            def ended(task: asyncio.Task[None]) -> None:
                running.discard(task)
                rung.set()

            async with asyncio.TaskGroup() as tasks:
                watching = [
                    tasks.create_task(self._every(look_every_s, look))
                    for look in (self._look_after_all, self._end_all)
                ]
                while not self._stopping.is_set():
                    rung.clear()
                    job = await self._take() if len(running) < self._slots else None
                    if job is not None:
                        task = tasks.create_task(self._attend(job), name=f"job {job.id}")
                        running.add(task)
                        task.add_done_callback(ended)
                        continue
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(look_every_s):
                            await rung.wait()
                for task in watching:
                    task.cancel()

    async def _every(self, pause_s: float, look: Callable[[], Awaitable[None]]) -> None:
        """Calls a function periodically, until cancelled."""
        while True:
            try:
                await look()
            except QueueUnavailableError as error:
                logger.warning("jobs cannot be monitored", extra={"reason": str(error)})
            await asyncio.sleep(pause_s)

    async def _look_after_all(self) -> None:
        now = await self._store.now()
        for job in [job async for job in each_in(self._store, "running")]:
            await self._look_after(job, now)

    async def _end_all(self) -> None:
        left = [job async for job in each_in(self._store, "queued") if job.cancel_asked]
        await asyncio.gather(*map(self._end_apart, left))

    async def _take(self) -> TrainingJob | None:
        """Takes the next job; returns None if there is none."""
        try:
            now = await self._store.now()
            async for job in each_in(self._store, "queued"):
                holder = secrets.token_hex(8)
                found = transitions.taken(
                    job, self._name, holder, now, self._lease_s, self._executor.runs_apart
                )
                if found is not None and await self._store.swap(*found):
                    return found[0]
        except QueueUnavailableError as error:
            logger.warning("no jobs can be claimed", extra={"reason": str(error)})
        return None

    async def _look_after(self, job: TrainingJob, now: float) -> None:
        """Gives the worker of an expired lease a last call, and requeues the job after that."""
        grace_s = self._lease_s / RENEWALS
        found = transitions.abandoned(job, now, self._executor.takeovers, grace_s)
        if found is None or not await self._store.swap(*found):
            return
        told = {"job": job.id, "worker": job.worker, "state": found[0].state}
        if found[0].state == "running":
            logger.info("a worker does not respond", extra=told)
        else:
            self._metrics.takeovers.inc()
            logger.warning("a worker died", extra=told)

    async def _attend(self, job: TrainingJob) -> None:
        """Runs one job."""
        logger.info("job begins", extra={"job": job.id, "recipe": job.name})
        began = time.monotonic()
        outbox = Outbox(self._store, job)
        sending = asyncio.create_task(outbox.run())
        keeping = asyncio.create_task(self._keep(job))
        running = asyncio.create_task(self._executor.run(job, outbox, self._stopping))
        self._metrics.running.inc()
        try:
            await asyncio.wait({running, keeping}, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            await asyncio.wait({running})
            if keeping.done() and keeping.result() == "lost":
                logger.warning("a job was lost to another worker", extra={"job": job.id})
                return
            await outbox.drain()
            await self._settle(job, running, keeping)
        finally:
            for task in (sending, keeping, running):
                task.cancel()
            await asyncio.wait({sending, keeping, running})
            self._metrics.running.dec()
            self._metrics.attempt_seconds.observe(time.monotonic() - began)

    async def _keep(self, job: TrainingJob) -> End:
        """Renews the lease until that fails, or the job is to be cancelled."""
        clock = asyncio.get_running_loop().time
        renew_at, lost_at = clock() + self._lease_s / RENEWALS, clock() + self._lease_s
        with self._store.bell.heard(job.id) as rung:
            while True:
                rung.clear()
                asked_at = clock()
                try:
                    found = await self._look(job, renew=asked_at >= renew_at)
                    if not transitions.holds(found, job.holder):
                        return "lost"
                    if found.cancel_asked:
                        return "cancel"
                    if asked_at >= renew_at:
                        renew_at = asked_at + self._lease_s / RENEWALS
                        lost_at = asked_at + self._lease_s
                    wait_s = min(renew_at - asked_at, self._store.look_every_s)
                except UnknownJobError:
                    return "lost"
                except QueueUnavailableError:
                    if clock() >= lost_at:
                        return "silent"
                    wait_s = self._retry_s
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await rung.wait()

    async def _look(self, job: TrainingJob, *, renew: bool) -> TrainingJob:
        """Returns the current job, after renewing its lease if that is due."""
        if not renew:
            return await self._store.find(job.id)
        now = await self._store.now()
        rule = partial(transitions.renewed, holder=job.holder, now=now, lease_s=self._lease_s)
        return (await change(self._store, job.id, rule))[0]

    async def _settle(
        self, job: TrainingJob, running: "asyncio.Task[Outcome]", keeping: "asyncio.Task[End]"
    ) -> None:
        """Writes the outcome of a job, as long as this worker holds it.

        It retries however long the store is unavailable: only a worker that is stopped discards an
        outcome that it could not write for a whole lease.
        """
        rule = _rule(running)
        while True:
            try:
                at_now = partial(rule, holder=job.holder, now=await self._store.now())
                settled, mine = await change(self._store, job.id, at_now)
                break
            except QueueUnavailableError as error:
                logger.warning("a job's outcome cannot be stored yet", extra={"reason": str(error)})
                end = keeping.result() if keeping.done() else None
                if end == "lost" or (end == "silent" and self._stopping.is_set()):
                    return
                await asyncio.sleep(self._retry_s)
        if mine:
            self._tell_end(settled)
            if settled.cancel_asked:
                with contextlib.suppress(QueueUnavailableError):  # a watching worker retries
                    await self._end_apart(settled)

    async def _end_apart(self, job: TrainingJob) -> None:
        """Cancels a job without a worker once its run has ended; the watch repeats the call.

        Raises:
            QueueUnavailableError: the store is unavailable.
        """
        if not await self._executor.discard(job):
            return
        now = await self._store.now()
        with contextlib.suppress(UnknownJobError):
            rule = partial(transitions.ended_apart, now=now)
            settled, mine = await change(self._store, job.id, rule)
            if mine:
                self._tell_end(settled)

    def _tell_end(self, job: TrainingJob) -> None:
        if job.is_over:
            self._metrics.finished.labels(job.state).inc()
        logger.info("job ends", extra={"job": job.id, "state": job.state, "error": job.error})


def _rule(running: "asyncio.Task[Outcome]") -> Callable[..., Change | None]:
    """Returns the transition for the end of a run: a function of `job`, `holder` and `now`."""
    if running.cancelled():
        return transitions.stopped
    fault = running.exception()
    if fault is not None:
        logger.error("a job could not be run", exc_info=fault)
        outcome: Outcome = Failed(f"the worker could not run it: {fault}")
    else:
        outcome = running.result()
    if isinstance(outcome, Succeeded):
        return partial(transitions.succeeded, version=outcome.version, alias=outcome.alias)
    if isinstance(outcome, Failed):
        return partial(transitions.failed, error=outcome.error)
    return transitions.stopped
