"""The interface of an executor of jobs; `local` and `kubeflow` implement it.

In: a job that this worker holds. Out: its outcome, and meanwhile its reports. A run reports in the
JSON lines of `training.job`.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec

from services.trainer.records import TrainingJob

MAX_METRICS = 256
"""Maximum number of values kept of one epoch."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The job published a version."""

    version: int
    alias: str = ""
    """Result for the recipe's alias, as a suffix of the version: ` → production`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed and will not publish."""

    error: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job is not finished: another worker can continue it."""


Outcome = Succeeded | Failed | Stopped


class Listener(Protocol):
    """Receives the reports of a run; its methods wait if too many are queued."""

    async def begun(self, folder: str) -> None:
        """Receives the folder that the run works in."""

    async def metric(self, epoch: int, metrics: dict[str, float]) -> None:
        """Receives the metrics of a finished epoch."""

    async def log(self, line: str) -> None:
        """Receives a line that the run printed."""


class Executor(Protocol):
    """Runs jobs."""

    takeovers: int
    """Number of worker deaths after which a job may continue on another worker."""
    runs_apart: bool
    """True if a run survives its worker."""

    async def run(self, job: TrainingJob, listener: Listener, stopping: asyncio.Event) -> Outcome:
        """Runs a job to its end.

        If the task is cancelled, it ends a run that depends on this worker at once, and no other.

        Args:
            job: the job.
            listener: receiver of its reports.
            stopping: event after which the job is left to another worker as soon as possible.
        """

    async def discard(self, job: TrainingJob) -> bool:
        """Ends a run that survived its worker; idempotent, and any worker may call it.

        Returns:
            True if the run has ended; otherwise the call is to be repeated.
        """


class _Begun(msgspec.Struct, tag_field="kind", tag="begun"):
    folder: str


class _Metric(msgspec.Struct, tag_field="kind", tag="metric"):
    epoch: int
    metrics: dict[str, float]


class _Published(msgspec.Struct, tag_field="kind", tag="published"):
    model: str
    version: int
    alias: str = ""


class _Stopped(msgspec.Struct, tag_field="kind", tag="stopped"):
    text: str


class _Failed(msgspec.Struct, tag_field="kind", tag="failed"):
    text: str


_decoder = msgspec.json.Decoder(_Begun | _Metric | _Published | _Stopped | _Failed)


class Story:
    """Parser of a run's reports, which passes on new ones.

    Args:
        listener: receiver of new reports.
        epoch: last epoch that was reported before; none is reported twice, since epochs that are
            repeated after a resumption have the same metrics.
    """

    def __init__(self, listener: Listener, epoch: int) -> None:
        self._listener = listener
        self._epoch = epoch
        self.outcome: Outcome | None = None
        """Outcome by its last report; None while there is none."""

    async def hear(self, line: str) -> None:
        """Parses one line of events; any other line is treated as a line of the log."""
        try:
            told = _decoder.decode(line)
        except msgspec.MsgspecError:
            await self._listener.log(line)
            return
        match told:
            case _Begun():
                self.outcome = None  # discards the outcome of an earlier attempt
                await self._listener.begun(told.folder)
            case _Metric() if told.epoch > self._epoch:
                self._epoch = told.epoch
                kept = dict(list(told.metrics.items())[:MAX_METRICS])
                await self._listener.metric(told.epoch, kept)
            case _Published():
                self.outcome = Succeeded(told.version, told.alias)
            case _Stopped():
                self.outcome = Stopped()
            case _Failed():
                self.outcome = Failed(told.text)
