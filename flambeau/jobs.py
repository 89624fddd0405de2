"""Client of asynchronous jobs: submits inference work, and fetches the result later.

    with JobClient("models.internal:8001") as jobs:
        job = jobs.submit("digits", {"image": images})
        job = jobs.get(job.id, wait_s=30)
        logits = job.outputs["logits"]

Rules: a submission that is repeated, for example after a broken connection, is the same job; one
without an idempotency key gets a generated one.
"""

import asyncio
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

from flambeau.calling.attempts import check_timeout_s
from flambeau.calling.connection import AsyncServiceConnection, ServiceConnection
from flambeau.channel import Messages, moment
from flambeau.protocol.messages import jobs as pb
from flambeau.wire import Array, Call, InferOptions, infer_call, read_outputs, text

SERVICE = "flambeau.v1.JobService"
OVER = frozenset({"done", "failed", "cancelled", "expired"})
"""Final states of a job."""
ASK_AGAIN_S = 1.0
WAIT_S = 30.0
"""Seconds of one request that waits for a job."""
_MESSAGES: Messages = {
    "SubmitJob": (pb.SubmitJobRequest, pb.SubmitJobResponse),
    "GetJob": (pb.GetJobRequest, pb.Job),
    "CancelJob": (pb.CancelJobRequest, pb.Job),
    "ListJobs": (pb.ListJobsRequest, pb.ListJobsResponse),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The server's record of a job."""

    id: str
    model: str
    version: str
    state: str
    """`queued`, `running`, `done`, `failed`, `cancelled` or `expired`."""
    created_at: datetime
    deadline: datetime
    finished_at: datetime | None
    error: str
    """Reason of the failure; empty if it did not fail."""
    outputs: dict[str, Array] | None
    """Arrays by output name, once the job is done."""
    is_new: bool = False
    """True if this submission created the job."""

    @property
    def is_over(self) -> bool:
        """True if the job is in a final state."""
        return self.state in OVER


class JobOptions(TypedDict, total=False):
    """Options of a submission, as `JobClient.submit` describes them."""

    version: str
    outputs: Sequence[str]
    timeout_s: float | None
    idempotency_key: str
    webhook: str
    artifact: str
    accuracy: str
    bf16: Collection[str]


class JobClient(ServiceConnection):
    """A connection to a server that keeps jobs; threads may share it.

    Args:
        target: `host:port` of its gRPC.
        timeout_s: default timeout of a call in seconds.
        retries: most retries of a call, as for `Client`.
        max_message_bytes: limit of one message, in either direction.
        tls: TLS settings; None for plain text.
        token: an API key, or a token of the identity provider; empty if none is needed.
    """

    service = SERVICE
    messages = _MESSAGES

    def submit(self, model: str, inputs: Mapping[str, Array], **options: Unpack[JobOptions]) -> Job:
        """Submits a job. The signature is checked by the server.

        Args:
            model: name of the model.
            inputs: arrays by input name, as for `Client.infer`.
            options: `version`, `outputs`, `artifact`, `accuracy` and `bf16`, as for `Client.infer`;
                `timeout_s`, the timeout of the job in seconds (None for the server's limit);
                `idempotency_key`: a repeated key is the same job; `webhook`, a URL that the server
                calls when the job is over.

        Raises:
            ClientError: an error of the tree in `flambeau.errors`.
        """
        return self._answer(_submit_call(model, inputs, **options))

    def get(self, job_id: str, *, wait_s: float = 0.0) -> Job:
        """Returns a job.

        Args:
            job_id: id of the job.
            wait_s: seconds to wait until it is over; the server waits at most one minute.

        Raises:
            NotFoundError: there is no such job, or its result is no longer kept.
            ClientError: any other failure.
        """
        return self._answer(_get_call(job_id, wait_s), self._timeout_s + wait_s)

    def wait(self, job_id: str) -> Job:
        """Waits until a job is over, and returns it.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        while True:
            asked_at = time.monotonic()
            job = self.get(job_id, wait_s=WAIT_S)
            if job.is_over:
                return job
            # A server with too many waiting callers responds immediately.
            time.sleep(max(asked_at + ASK_AGAIN_S - time.monotonic(), 0))

    def cancel(self, job_id: str) -> Job:
        """Cancels a job that is not over; a finished job is returned unchanged.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        return self._answer(_cancel_call(job_id))

    def list(self, model: str) -> "list[Job]":
        """Lists a model's newest jobs, without their results.

        Raises:
            NotFoundError: no such model.
            ClientError: any other failure.
        """
        return self._answer(_list_call(model))


class AsyncJobClient(AsyncServiceConnection):
    """Asyncio version of `JobClient`: create and use it inside one running event loop."""

    service = SERVICE
    messages = _MESSAGES

    async def submit(
        self, model: str, inputs: Mapping[str, Array], **options: Unpack[JobOptions]
    ) -> Job:
        """Same as `JobClient.submit`."""
        return await self._answer(_submit_call(model, inputs, **options))

    async def get(self, job_id: str, *, wait_s: float = 0.0) -> Job:
        """Same as `JobClient.get`."""
        return await self._answer(_get_call(job_id, wait_s), self._timeout_s + wait_s)

    async def wait(self, job_id: str) -> Job:
        """Same as `JobClient.wait`."""
        while True:
            asked_at = time.monotonic()
            job = await self.get(job_id, wait_s=WAIT_S)
            if job.is_over:
                return job
            await asyncio.sleep(max(asked_at + ASK_AGAIN_S - time.monotonic(), 0))

    async def cancel(self, job_id: str) -> Job:
        """Same as `JobClient.cancel`."""
        return await self._answer(_cancel_call(job_id))

    async def list(self, model: str) -> "list[Job]":
        """Same as `JobClient.list`."""
        return await self._answer(_list_call(model))


def _submit_call(
    model: str,
    inputs: Mapping[str, Array],
    *,
    timeout_s: float | None = None,
    idempotency_key: str = "",
    webhook: str = "",
    **options: Unpack[InferOptions],
) -> Call[Job]:
    request: Any = infer_call(model, inputs, **options).request
    if timeout_s is not None:
        request.parameters["timeout"].int64_param = int(check_timeout_s(timeout_s) * 1e6)
    message = pb.SubmitJobRequest(
        request=request,
        idempotency_key=text("idempotency_key", idempotency_key) or uuid.uuid4().hex,
        webhook=text("webhook", webhook),
    )
    return Call(
        method="SubmitJob",
        request=message,
        read=lambda reply: _job(reply.job, is_new=reply.is_new),
    )


def _get_call(job_id: str, wait_s: float) -> Call[Job]:
    request = pb.GetJobRequest(id=text("job_id", job_id))
    request.wait.FromMicroseconds(int(wait_s * 1e6))
    return Call(method="GetJob", request=request, read=_job)


def _cancel_call(job_id: str) -> Call[Job]:
    return Call(
        method="CancelJob", request=pb.CancelJobRequest(id=text("job_id", job_id)), read=_job
    )


def _list_call(model: str) -> Call[list[Job]]:
    request = pb.ListJobsRequest(model_name=text("model", model))
    return Call(method="ListJobs", request=request, read=lambda reply: list(map(_job, reply.jobs)))


def _job(message: pb.Job, *, is_new: bool = False) -> Job:
    return Job(
        id=message.id,
        model=message.model_name,
        version=message.model_version,
        state=pb.Job.State.Name(message.state).removeprefix("STATE_").lower(),
        created_at=moment(message.created_at),
        deadline=moment(message.deadline),
        finished_at=moment(message.finished_at) if message.HasField("finished_at") else None,
        error=message.error,
        outputs=read_outputs(message.result) if message.HasField("result") else None,
        is_new=is_new,
    )
