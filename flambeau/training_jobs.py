"""Client of training jobs: submits recipes to a training service, and watches their progress.

    with TrainingClient("trainer.internal:8004") as training:
        job = training.submit(recipe_text, overrides=["train.epochs=5"])
        for event in training.watch(job.id, follow=True):
            print(event.text)

Rules: a submission that is repeated, for example after a broken connection, is the same job; a
watch whose connection breaks resumes after the last event it has yielded.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack

from flambeau.calling.attempts import CALL_TIMEOUT_S
from flambeau.calling.connection import AsyncServiceConnection, ServiceConnection
from flambeau.channel import Messages, Tls, bearer, failing, moment
from flambeau.errors import UnavailableError
from flambeau.protocol.messages import training as pb
from flambeau.wire import Call

SERVICE = "flambeau.v1.Training"
OVER = frozenset({"succeeded", "failed", "cancelled"})
"""Final states of a job."""
MAX_MESSAGE_BYTES = 2**30
GONE_FOR_S = 60.0
"""Seconds that a watch waits for an unavailable service."""
RETRY_S = 0.5
_MESSAGES: Messages = {
    "SubmitJob": (pb.SubmitTrainingRequest, pb.TrainingJob),
    "GetJob": (pb.GetTrainingRequest, pb.TrainingJob),
    "ListJobs": (pb.ListTrainingRequest, pb.ListTrainingResponse),
    "CancelJob": (pb.CancelTrainingRequest, pb.TrainingJob),
    "ResumeJob": (pb.ResumeTrainingRequest, pb.TrainingJob),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The service's record of a job."""

    id: str
    name: str
    """Name of its recipe."""
    model: str
    """Name of the model that it publishes."""
    state: str
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    submitter: str
    attempts: int
    epoch: int
    """Last completed epoch."""
    worker: str
    """Worker that runs it, while it runs."""
    run_folder: str
    version: int | None
    """Number of the published version, once it has succeeded."""
    error: str
    """Reason of the failure; empty if it did not fail."""
    recipe: str
    """YAML with every default; empty in lists."""

    @property
    def is_over(self) -> bool:
        """True if the job is in a final state; it can still be resumed."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvent:
    """An event of a job."""

    seq: int
    """Sequence number of the event within its job, from 1."""
    time: datetime
    attempt: int
    kind: str
    """`state`, `log` or `metric`."""
    text: str
    """A line of the log, or a description of the new state."""
    state: str
    """New state of a `state` event; empty for others."""
    epoch: int
    """Epoch of a `metric` event."""
    metrics: Mapping[str, float]
    """Metrics of a `metric` event."""


class SubmitOptions(TypedDict, total=False):
    """Options of a submission, as `TrainingClient.submit` describes them."""

    name: str
    overrides: Sequence[str]
    bundle: bytes
    idempotency_key: str


class TrainingClient(ServiceConnection):
    """A connection to a training service; threads may share it.

    Args:
        target: `host:port` of its gRPC.
        token: token of a caller that is allowed to train; empty if none is needed.
        tls: TLS settings; None for plain text.
    """

    service = SERVICE
    messages = _MESSAGES

    def __init__(self, target: str, *, token: str = "", tls: Tls | None = None) -> None:
        super().__init__(target, max_message_bytes=MAX_MESSAGE_BYTES, tls=tls, token=token)
        self._watch = _bind_watch(self._channel, token)

    def submit(self, recipe: str, **options: Unpack[SubmitOptions]) -> TrainingJob:
        """Submits a job.

        Args:
            recipe: text of the recipe, YAML or JSON.
            options: `name`, the file name of the recipe, for messages; `overrides`, `a.b=c` each;
                `bundle`, a zip, tar or tar.gz file with the code that the recipe names;
                `idempotency_key`: a repeated key is the same job.

        Raises:
            ClientError: an error of the tree in `flambeau.errors`.
        """
        return self._answer(_submit_call(recipe, **options))

    def get(self, job_id: str) -> TrainingJob:
        """Returns a job.

        Raises:
            NotFoundError: there is no such job, or its record was deleted.
            ClientError: any other failure.
        """
        return self._answer(_get_call(job_id))

    def list(self, state: str = "", limit: int = 0) -> "list[TrainingJob]":
        """Lists the newest jobs.

        Args:
            state: state to filter by; empty for all.
            limit: maximum number of jobs; 0 for the service's limit.

        Raises:
            ValueError: there is no such state.
            ClientError: an error of the tree in `flambeau.errors`.
        """
        return self._answer(_list_call(state, limit))

    def cancel(self, job_id: str) -> TrainingJob:
        """Cancels a job that is not over; a finished job is returned unchanged.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        return self._answer(_cancel_call(job_id))

    def resume(self, job_id: str) -> TrainingJob:
        """Resumes a failed or cancelled job from its checkpoint.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        return self._answer(_resume_call(job_id))

    def watch(
        self, job_id: str, *, after: int = 0, follow: bool = False
    ) -> Iterator[TrainingEvent]:
        """Yields the events of a job, the oldest first.

        Args:
            job_id: id of the job.
            after: sequence number after which events are yielded.
            follow: True to continue until the job is over, through restarts of the service.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        gone_at: float | None = None
        while True:
            request = pb.WatchTrainingRequest(id=job_id, after=after, follow=follow)
            try:
                with failing(CALL_TIMEOUT_S):
                    for message in self._watch(request):
                        after, gone_at = message.seq, None
                        yield _event(message)
                if not follow or self.get(job_id).is_over:
                    return
            except UnavailableError as failure:
                if not follow:
                    raise
                gone_at = _patient(gone_at, failure)
            time.sleep(RETRY_S)


class AsyncTrainingClient(AsyncServiceConnection):
    """Asyncio version of `TrainingClient`: create and use it inside one running event loop."""

    service = SERVICE
    messages = _MESSAGES

    def __init__(self, target: str, *, token: str = "", tls: Tls | None = None) -> None:
        super().__init__(target, max_message_bytes=MAX_MESSAGE_BYTES, tls=tls, token=token)
        self._watch = _bind_watch(self._channel, token)

    async def submit(self, recipe: str, **options: Unpack[SubmitOptions]) -> TrainingJob:
        """Same as `TrainingClient.submit`."""
        return await self._answer(_submit_call(recipe, **options))

    async def get(self, job_id: str) -> TrainingJob:
        """Same as `TrainingClient.get`."""
        return await self._answer(_get_call(job_id))

    async def list(self, state: str = "", limit: int = 0) -> "list[TrainingJob]":
        """Same as `TrainingClient.list`."""
        return await self._answer(_list_call(state, limit))

    async def cancel(self, job_id: str) -> TrainingJob:
        """Same as `TrainingClient.cancel`."""
        return await self._answer(_cancel_call(job_id))

    async def resume(self, job_id: str) -> TrainingJob:
        """Same as `TrainingClient.resume`."""
        return await self._answer(_resume_call(job_id))

    async def watch(
        self, job_id: str, *, after: int = 0, follow: bool = False
    ) -> AsyncIterator[TrainingEvent]:
        """Same as `TrainingClient.watch`, as an async iterator."""
        gone_at: float | None = None
        while True:
            request = pb.WatchTrainingRequest(id=job_id, after=after, follow=follow)
            try:
                with failing(CALL_TIMEOUT_S):
                    async for message in self._watch(request):
                        after, gone_at = message.seq, None
                        yield _event(message)
                if not follow or (await self.get(job_id)).is_over:
                    return
            except UnavailableError as failure:
                if not follow:
                    raise
                gone_at = _patient(gone_at, failure)
            await asyncio.sleep(RETRY_S)


def _bind_watch(channel: Any, token: str) -> Any:
    watch = channel.unary_stream(
        f"/{SERVICE}/WatchJob",
        request_serializer=pb.WatchTrainingRequest.SerializeToString,
        response_deserializer=pb.TrainingEvent.FromString,
    )
    return partial(watch, metadata=bearer(token))


def _submit_call(
    recipe: str,
    *,
    name: str = "",
    overrides: Sequence[str] = (),
    bundle: bytes = b"",
    idempotency_key: str = "",
) -> Call[TrainingJob]:
    request = pb.SubmitTrainingRequest(
        recipe=recipe, name=name, overrides=overrides, bundle=bundle,
        idempotency_key=idempotency_key or uuid.uuid4().hex,
    )  # fmt: skip
    return Call(method="SubmitJob", request=request, read=_job)


def _get_call(job_id: str) -> Call[TrainingJob]:
    return Call(method="GetJob", request=pb.GetTrainingRequest(id=job_id), read=_job)


def _list_call(state: str, limit: int) -> Call[list[TrainingJob]]:
    wanted = f"STATE_{state.upper()}" if state else None
    request = pb.ListTrainingRequest(limit=limit, state=wanted)
    return Call(method="ListJobs", request=request, read=lambda reply: list(map(_job, reply.jobs)))


def _cancel_call(job_id: str) -> Call[TrainingJob]:
    return Call(method="CancelJob", request=pb.CancelTrainingRequest(id=job_id), read=_job)


def _resume_call(job_id: str) -> Call[TrainingJob]:
    return Call(method="ResumeJob", request=pb.ResumeTrainingRequest(id=job_id), read=_job)


def _patient(gone_at: float | None, failure: UnavailableError) -> float:
    """Returns the start of the outage; raises the failure if it lasts too long."""
    if gone_at is None:
        return time.monotonic()
    if time.monotonic() - gone_at > GONE_FOR_S:
        raise failure
    return gone_at


def _job(message: pb.TrainingJob) -> TrainingJob:
    return TrainingJob(
        id=message.id,
        name=message.name,
        model=message.model,
        state=_state(message.state),
        created_at=moment(message.created_at),
        started_at=moment(message.started_at) if message.HasField("started_at") else None,
        finished_at=moment(message.finished_at) if message.HasField("finished_at") else None,
        submitter=message.submitter,
        attempts=message.attempts,
        epoch=message.epoch,
        worker=message.worker,
        run_folder=message.run_folder,
        version=message.version or None,
        error=message.error,
        recipe=message.recipe,
    )


def _event(message: pb.TrainingEvent) -> TrainingEvent:
    return TrainingEvent(
        seq=message.seq,
        time=moment(message.time),
        attempt=message.attempt,
        kind=pb.TrainingEvent.Kind.Name(message.kind).removeprefix("KIND_").lower(),
        text=message.text,
        state=_state(message.state) if message.state else "",
        epoch=message.epoch,
        metrics=dict(message.metrics),
    )


def _state(value: "pb.TrainingJob.State") -> str:
    return pb.TrainingJob.State.Name(value).removeprefix("STATE_").lower()
