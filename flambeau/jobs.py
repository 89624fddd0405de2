"""Client of asynchronous jobs: submits inference work, and fetches the result later.

    with JobClient("models.internal:8001") as jobs:
        job = jobs.submit("digits", {"image": images})
        job = jobs.get(job.id, wait_s=30)
        logits = job.outputs["logits"]

Rules: a submission that is repeated, for example after a broken connection, is the same job; one
without an idempotency key gets a generated one.
"""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from flambeau.channel import (
    CALL_TIMEOUT_S,
    MAX_MESSAGE_BYTES,
    Messages,
    ServiceConnection,
    Tls,
    check_timeout_s,
    moment,
)
from flambeau.protocol.messages import jobs as pb
from flambeau.wire import Array, infer_call, read_outputs

SERVICE = "flambeau.v1.JobService"
OVER = frozenset({"done", "failed", "cancelled", "expired"})
"""Final states of a job."""
ASK_AGAIN_S = 1.0
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


class JobClient(ServiceConnection):
    """A connection to a server that keeps jobs; threads may share it.

    Args:
        target: `host:port` of its gRPC.
        max_message_bytes: limit of one message, in either direction.
        tls: TLS settings; None for plain text.
        token: an API key, or a token of the identity provider; empty if none is needed.
    """

    def __init__(
        self,
        target: str,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        super().__init__(target, SERVICE, _MESSAGES, max_message_bytes, tls, token)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
        idempotency_key: str = "",
        webhook: str = "",
        bf16: Collection[str] = (),
    ) -> Job:
        """Submits a job. The signature is checked by the server.

        Args:
            model: name of the model.
            inputs: arrays by input name, as for `Client.infer`.
            version: version number; empty for the one the server's pointer names.
            outputs: names of the requested outputs; none for all.
            timeout_s: timeout of the job in seconds; None for the server's limit.
            idempotency_key: key of the job; a repeated key is the same job.
            webhook: URL that the server calls when the job is over.
            bf16: names of the bfloat16 inputs.

        Raises:
            ClientError: an error of the tree in `flambeau.errors`.
        """
        request = infer_call(
            model, inputs, version=version, outputs=outputs, request_id="", bf16=bf16
        ).request
        if timeout_s is not None:
            request.parameters["timeout"].int64_param = int(check_timeout_s(timeout_s) * 1e6)
        message = pb.SubmitJobRequest(
            request=request, idempotency_key=idempotency_key or uuid.uuid4().hex, webhook=webhook
        )
        reply = self._call("SubmitJob", message)
        return _job(reply.job, is_new=reply.is_new)

    def get(self, job_id: str, *, wait_s: float = 0.0) -> Job:
        """Returns a job.

        Args:
            job_id: id of the job.
            wait_s: seconds to wait until it is over; the server waits at most one minute.

        Raises:
            NotFoundError: there is no such job, or its result is no longer kept.
            ClientError: any other failure.
        """
        request = pb.GetJobRequest(id=job_id)
        request.wait.FromMicroseconds(int(wait_s * 1e6))
        return _job(self._call("GetJob", request, CALL_TIMEOUT_S + wait_s))

    def wait(self, job_id: str) -> Job:
        """Waits until a job is over, and returns it.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        while True:
            asked_at = time.monotonic()
            job = self.get(job_id, wait_s=30.0)
            if job.is_over:
                return job
            # A server with too many waiting callers responds immediately.
            time.sleep(max(asked_at + ASK_AGAIN_S - time.monotonic(), 0))

    def cancel(self, job_id: str) -> Job:
        """Cancels a job that is not over; a finished job is returned unchanged.

        Raises:
            NotFoundError, ClientError: as `get`.
        """
        return _job(self._call("CancelJob", pb.CancelJobRequest(id=job_id)))

    def list(self, model: str) -> list[Job]:
        """Lists a model's newest jobs, without their results.

        Raises:
            NotFoundError: no such model.
            ClientError: any other failure.
        """
        return [
            _job(job) for job in self._call("ListJobs", pb.ListJobsRequest(model_name=model)).jobs
        ]


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
