"""Runs a job as a TrainJob of Kubeflow Trainer v2.

The worker creates the object, reads its status, and passes on the events that the pod writes to the
job's folder, on a volume that both mount. The TrainJob does not need the worker: the next worker
that holds the job finds the object by its name and continues to monitor it.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from model_store.storage.plain_file import NotPlainFileError, open_plain_file
from services.kubernetes.object_api import KubernetesError
from services.trainer.config import TrainerConfig
from services.trainer.executors.executor import Failed, Listener, Outcome, Stopped, Story
from services.trainer.executors.train_job import (
    EVENTS,
    condition_of,
    is_of_before,
    train_job,
    train_job_name,
)
from services.trainer.executors.train_job_api import TrainJobApi
from services.trainer.records import TrainingJob

logger = logging.getLogger("flambeau.trainer")

MAX_READ_BYTES = 2**20
GRACE_POLLS = 3
"""Polls of a complete TrainJob after which its last events must have reached the volume."""


class KubeflowExecutor:
    """Implements `Executor` with a TrainJob per job.

    Args:
        config: specification of TrainJobs.
        api: API to create them with.
    """

    takeovers, runs_apart = 1_000_000, True  # a TrainJob survives any worker that monitors it

    def __init__(self, config: TrainerConfig, api: TrainJobApi) -> None:
        self._config = config
        self._api = api

    async def run(self, job: TrainingJob, listener: Listener, stopping: asyncio.Event) -> Outcome:
        """See `Executor.run`."""
        story, name = Story(listener, job.epoch), train_job_name(job)
        events = _Tail(self._config.runs_folder / job.id / EVENTS)
        made, said, polls_after_end = False, "", 0
        while not stopping.is_set():
            try:
                if not made:
                    await self._make(job, listener)
                    made = True
                found = await self._api.read(name)
            except KubernetesError as error:
                if error.is_final:
                    return Failed(str(error))
                await listener.log(f"{error}; asked again in {self._config.kubeflow_poll_s:g} s")
                await self._pause(stopping)
                continue
            for line in await asyncio.to_thread(events.lines):
                await story.hear(line)
            if found is None:
                return Failed(f"the TrainJob {name} was deleted while it ran")
            condition, why = condition_of(found)
            if condition != said:
                said = condition
                await listener.log(f"TrainJob {name} is {condition} {why}".rstrip())
            if condition == "failed":
                return (
                    story.outcome
                    if isinstance(story.outcome, Failed)
                    else Failed(f"the TrainJob {name} failed: {why or 'no reason was given'}")
                )
            if condition == "complete":
                polls_after_end += 1
                if story.outcome is not None:
                    return story.outcome
                if polls_after_end > GRACE_POLLS:
                    return Failed(
                        f"the TrainJob {name} is complete and reported no version in "
                        f"{events.path}; is runs_dir the same volume here and in its pods?"
                    )
            await self._pause(stopping)
        return Stopped()

    async def discard(self, job: TrainingJob) -> bool:
        """See `Executor.discard`."""
        name = train_job_name(job)
        try:
            found = await self._api.read(name)
            return found is None or await self._api.delete(found)
        except KubernetesError as error:
            told = {"train_job": name, "reason": str(error)}
            logger.warning("a TrainJob that is to be cancelled cannot be deleted yet", extra=told)
            return False

    async def _make(self, job: TrainingJob, listener: Listener) -> None:
        """Creates the TrainJob, unless it exists; a job that a user resumed gets a new one.

        Raises:
            KubernetesError: the API refused, or the previous one is still being deleted.
        """
        name = train_job_name(job)
        found = await self._api.read(name)
        leaving = found is not None and "deletionTimestamp" in found["metadata"]
        if found is not None and (leaving or is_of_before(found, job)):
            if not await self._api.delete(found):  # it exists until its pods are deleted
                raise KubernetesError(f"the last TrainJob {name} is still being deleted")
            found = None
        if found is None:
            events = self._config.runs_folder / job.id / EVENTS
            await asyncio.to_thread(events.unlink, missing_ok=True)  # of the previous TrainJob
            await self._api.create(train_job(job, self._config))
            await listener.log(f"created TrainJob {name}")

    async def _pause(self, stopping: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.kubeflow_poll_s):
                await stopping.wait()


class _Tail:
    """Reader of complete lines of a growing file, from its beginning.

    Args:
        path: path of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0

    def lines(self) -> list[str]:
        """Returns the lines that were added since the last call."""
        try:
            with open_plain_file(self.path) as file:
                file.seek(self._read_bytes)
                data = file.read(MAX_READ_BYTES)
        except (FileNotFoundError, NotPlainFileError):  # a job may create a pipe there
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode(errors="replace").splitlines()
