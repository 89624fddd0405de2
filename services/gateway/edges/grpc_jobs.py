"""Jobs over gRPC: `flambeau.v1.JobService` (protos/flambeau/v1/jobs.proto).

In: its messages, on the event loop. Out: its answers; a `ServingError` becomes a gRPC status.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from protos import open_inference_pb2 as pb
from protos.flambeau.v1 import jobs_pb2 as jobs_pb
from services.access.caller import Visitor
from services.errors import ServingError, UnsupportedError
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.edges import grpc_codec
from services.gateway.job_desk import MAX_WAIT_S, JobDesk, JobWish, check_job
from services.gateway.ledger import Ledger
from services.queueing.job_records import Job
from services.queueing.records import InferReply

SERVICE = "flambeau.v1.JobService"
MAX_WAITING = 64
"""Calls that may wait for a job to be over. Those beyond get an answer at once."""
_RAW = pb.ModelInferRequest(raw_input_contents=[b""])
"""Stands for a request whose answer is to be raw."""


class GrpcJobs:
    """The calls; without a desk each of them says that there are no jobs here."""

    def __init__(self, admission: Admission, ledger: Ledger, desk: JobDesk | None) -> None:
        self._admission = admission
        self._ledger = ledger
        self._desk = desk
        self._waiting = 0

    def calls(
        self,
    ) -> dict[str, tuple[Callable[[Any, Visitor], Awaitable[Message]], type[Message]]]:
        """By name: what answers a call, on the event loop, and what it is asked with."""
        return {
            "SubmitJob": (self._submit, jobs_pb.SubmitJobRequest),
            "GetJob": (self._get, jobs_pb.GetJobRequest),
            "CancelJob": (self._cancel, jobs_pb.CancelJobRequest),
            "ListJobs": (self._list, jobs_pb.ListJobsRequest),
        }

    @property
    def _open_desk(self) -> JobDesk:
        if self._desk is None:
            raise UnsupportedError(
                "this server keeps no jobs: they need Redis between gateways and workers "
                "(docs/scaling.md)"
            )
        return self._desk

    async def _submit(self, asked: jobs_pb.SubmitJobRequest, visitor: Visitor) -> Message:
        desk, request = self._open_desk, asked.request
        visitor.require("infer", request.model_name)
        timeout_us, _ = grpc_codec.scheduling(request)
        call = InferCall(
            request_id=self._ledger.safe_id(request.id) if request.id else self._ledger.new_id(),
            model=request.model_name,
            version=request.model_version,
            inputs=await self._inputs(request),
            outputs=grpc_codec.asked_outputs(request),
            wish=grpc_codec.artifact_wish(request),
            caller=visitor.caller,
        )
        wish = JobWish(
            timeout_s=timeout_us / 1e6 or None,
            idempotency_key=asked.idempotency_key,
            webhook=asked.webhook,
        )
        with self._ledger.counting_refusals():
            job, is_new = await desk.submit(call, wish)
        return jobs_pb.SubmitJobResponse(job=job_message(job), is_new=is_new)

    async def _inputs(self, request: pb.ModelInferRequest) -> list[InputTensor]:
        if not grpc_codec.has_long_texts(request):
            return grpc_codec.decode_inputs(request)
        return await self._admission.work.run(grpc_codec.decode_in_slices(request, None, int))

    async def _get(self, asked: jobs_pb.GetJobRequest, visitor: Visitor) -> Message:
        jobs, wait_s = self._open_desk.jobs, asked.wait.seconds + asked.wait.nanos / 1e9
        check_job(visitor, asked.id)
        if wait_s <= 0 or self._waiting >= MAX_WAITING:
            return job_message(await jobs.find(asked.id))
        self._waiting += 1
        try:
            return job_message(await jobs.wait(asked.id, min(wait_s, MAX_WAIT_S)))
        finally:
            self._waiting -= 1

    async def _cancel(self, asked: jobs_pb.CancelJobRequest, visitor: Visitor) -> Message:
        jobs = self._open_desk.jobs
        check_job(visitor, asked.id)
        return job_message(await jobs.cancel(asked.id))

    async def _list(self, asked: jobs_pb.ListJobsRequest, visitor: Visitor) -> Message:
        desk = self._open_desk
        visitor.require("infer", asked.model_name)
        self._admission.directory.find(asked.model_name)  # unknown names are NOT_FOUND
        found = await desk.jobs.of_model(asked.model_name)
        return jobs_pb.ListJobsResponse(jobs=[job_message(job, with_result=False) for job in found])


def job_message(job: Job, *, with_result: bool = True) -> jobs_pb.Job:
    """A job as a message."""
    message = jobs_pb.Job(
        id=job.id,
        model_name=job.lane.model,
        model_version=str(job.lane.version),
        state=f"STATE_{job.state.upper()}",
        created_at=_moment(job.created_at),
        deadline=_moment(job.deadline),
    )
    if job.finished_at is not None:
        message.finished_at.CopyFrom(_moment(job.finished_at))
    if isinstance(job.outcome, ServingError):
        message.error = str(job.outcome)
    elif isinstance(job.outcome, InferReply) and with_result:
        message.result.CopyFrom(grpc_codec.encode(job.outcome, _RAW))
    return message


def _moment(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e6) * 1000)
