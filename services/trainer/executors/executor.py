"""What runs a job, whatever runs it: `local_executor` or `kubeflow_executor`.

In: a job that this worker holds. Out: how it ended, and on the way what it tells. A run tells of
itself in the JSON lines of `training.job`.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec

from services.trainer.records import TrainingJob

MAX_METRICS = 256
"""Values of one epoch that are kept."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """It has published."""

    version: int
    alias: str = ""
    """What became of the recipe's alias, as it stands behind the version: ` → production`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not publish."""

    error: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """It is not over: another worker can go on with it."""


Outcome = Succeeded | Failed | Stopped


class Listener(Protocol):
    """Hears what a run tells. Waits while it has too much to say."""

    async def begun(self, folder: str) -> None:
        """It works in this folder."""

    async def metric(self, epoch: int, metrics: dict[str, float]) -> None:
        """An epoch is over."""

    async def log(self, line: str) -> None:
        """It has printed a line."""


class Executor(Protocol):
    """Runs jobs."""

    takeovers: int
    """How often a job may lose its worker and go on with another."""
    runs_apart: bool
    """Whether a run lives on without its worker."""

    async def run(self, job: TrainingJob, listener: Listener, stopping: asyncio.Event) -> Outcome:
        """Runs a job to its end.

        Cancelled, it ends at once what would die with this worker, and nothing else.

        Args:
            job: the job.
            listener: hears what it tells.
            stopping: once set, the job is to be left to another worker as soon as it can be.
        """

    async def discard(self, job: TrainingJob) -> bool:
        """Ends what still runs of a job apart from any worker; may be called again, by anybody.

        Returns:
            Whether nothing runs any more; else it is to be called again.
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
    """What a run has told so far.

    Args:
        listener: hears what is new.
        epoch: the last that was told before; none is told twice, for what is repeated after a
            resumption gives the same figures.
    """

    def __init__(self, listener: Listener, epoch: int) -> None:
        self._listener = listener
        self._epoch = epoch
        self.outcome: Outcome | None = None
        """By its last words; None while there were none."""

    async def hear(self, line: str) -> None:
        """One line of its events; what is none is taken for a line of its log."""
        try:
            told = _decoder.decode(line)
        except msgspec.MsgspecError:
            await self._listener.log(line)
            return
        match told:
            case _Begun():
                self.outcome = None  # words of an attempt before this
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
