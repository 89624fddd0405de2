"""Jobs over gRPC: `flambeau.v1.JobService` (protos/flambeau/v1/jobs.proto).

In: its messages, on the event loop. Out: its responses; a `ServingError` becomes a gRPC status.
"""

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from protos import open_inference_pb2 as pb
from protos.flambeau.v1 import jobs_pb2 as jobs_pb
from services.access.caller import Principal
from services.errors import ServingError, UnsupportedError
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.edges import grpc_codec
from services.gateway.edges.binary_texts import Reserve
from services.gateway.edges.grpc_large_answer import SlowAnswer, field_head
from services.gateway.edges.grpc_raw import check_job_request
from services.gateway.edges.raw_parts import Part
from services.gateway.jobs.job_service import MAX_WAIT_S, JobOptions, JobService, check_job
from services.gateway.request_accounting import RequestAccounting
from services.gateway.triton.classes import refuse_in_jobs
from services.queueing.job_records import Job
from services.queueing.records import InferReply
from services.wire.body import Body

SERVICE = "flambeau.v1.JobService"
MAX_WAITING = 64
"""Calls that may wait for a job to finish. Further ones are answered at once."""
_RAW = pb.ModelInferRequest(raw_input_contents=[b""])
"""Stands for a request whose response has the raw form."""
_JOB, _RESULT = b"\x0a", b"\x4a"
"""Tags of `SubmitJobResponse.job` and `Job.result`. Source: Protocol Buffers, encoding: several
occurrences of an embedded message are merged."""


class GrpcJobs:
    """Handlers of the calls; without a job service each refuses: this server keeps no jobs."""

    def __init__(
        self, admission: Admission, accounting: RequestAccounting, service: JobService | None
    ) -> None:
        self._admission = admission
        self._accounting = accounting
        self._service = service
        self._waiting = 0

    def calls(self) -> dict[str, tuple[SlowAnswer, type[Message]]]:
        """Returns, by name, the handler of a call on the event loop and its message type."""
        return {
            "SubmitJob": (self._submit, jobs_pb.SubmitJobRequest),
            "GetJob": (self._get, jobs_pb.GetJobRequest),
            "CancelJob": (self._cancel, jobs_pb.CancelJobRequest),
            "ListJobs": (self._list, jobs_pb.ListJobsRequest),
        }

    def check_submitted(self, body: Body) -> None:
        """Checks the message of `SubmitJob` before protobuf reads it.

        Raises:
            UnsupportedError: this server keeps no jobs.
            InvalidRequestError: it exceeds a limit.
        """
        if self._open_service:
            check_job_request(body)

    @property
    def _open_service(self) -> JobService:
        if self._service is None:
            raise UnsupportedError(
                "this server keeps no jobs: they need Redis between gateways and workers "
                "(docs/guides/scaling.md)"
            )
        return self._service

    async def _submit(
        self, asked: jobs_pb.SubmitJobRequest, principal: Principal, reserve: Reserve
    ) -> list[Part]:
        service, request = self._open_service, asked.request
        principal.require("infer", request.model_name)
        asked_of = grpc_codec.asked_parameters(request)
        outputs, classes = grpc_codec.asked_outputs(request)
        refuse_in_jobs(classes)
        call = InferCall(
            request_id=self._accounting.safe_id(request.id)
            if request.id
            else self._accounting.new_id(),
            model=request.model_name,
            version=request.model_version,
            inputs=await self._inputs(request, reserve),
            outputs=outputs,
            preference=asked_of.preference,
            sequence=asked_of.sequence,
            caller=principal.caller,
        )
        preference = JobOptions(
            timeout_s=asked_of.timeout_us / 1e6 or None,
            idempotency_key=asked.idempotency_key,
            webhook=asked.webhook,
        )
        with self._accounting.counting_refusals():
            job, is_new = await service.submit(call, preference, reserve)
        started = jobs_pb.SubmitJobResponse(job=job_message(job), is_new=is_new)
        result = await self._result(job, reserve)
        head = [field_head(_JOB, sum(map(len, result)))] if result else []
        return [started.SerializeToString(), *head, *result]

    async def _inputs(self, request: pb.ModelInferRequest, reserve: Reserve) -> list[InputTensor]:
        if not grpc_codec.has_long_texts(request):
            return grpc_codec.decode_inputs(request)
        slices = grpc_codec.decode_in_slices(request, None, reserve)
        return await self._admission.work.run(slices, request.ByteSize())

    async def _get(
        self, asked: jobs_pb.GetJobRequest, principal: Principal, reserve: Reserve
    ) -> list[Part]:
        jobs, wait_s = self._open_service.jobs, asked.wait.seconds + asked.wait.nanos / 1e9
        check_job(principal, asked.id)
        if wait_s <= 0 or self._waiting >= MAX_WAITING:
            return await self._parts(await jobs.find(asked.id, reserve), reserve)
        self._waiting += 1
        try:
            job = await jobs.wait(asked.id, min(wait_s, MAX_WAIT_S), reserve)
        finally:
            self._waiting -= 1
        return await self._parts(job, reserve)

    async def _cancel(
        self, asked: jobs_pb.CancelJobRequest, principal: Principal, reserve: Reserve
    ) -> list[Part]:
        jobs = self._open_service.jobs
        check_job(principal, asked.id)
        return await self._parts(await jobs.cancel(asked.id, reserve), reserve)

    async def _list(
        self, asked: jobs_pb.ListJobsRequest, principal: Principal, _: Reserve
    ) -> list[Part]:
        service = self._open_service
        principal.require("infer", asked.model_name)
        self._admission.directory.find(asked.model_name)  # unknown names are NOT_FOUND
        found = await service.jobs.of_model(asked.model_name)
        listed = jobs_pb.ListJobsResponse(jobs=map(job_message, found))
        return [listed.SerializeToString()]

    async def _parts(self, job: Job, reserve: Reserve) -> list[Part]:
        """Serialises a `Job`."""
        return [job_message(job).SerializeToString(), *await self._result(job, reserve)]

    async def _result(self, job: Job, reserve: Reserve) -> list[Part]:
        """Serialises the field `Job.result`; empty without a result."""
        if not isinstance(job.outcome, InferReply):
            return []
        encoded = grpc_codec.encode_serialized(job.outcome, _RAW, reserve)
        if isinstance(encoded, bytes):
            return [field_head(_RESULT, len(encoded)), encoded]
        parts = await self._admission.work.run(encoded)
        return [field_head(_RESULT, sum(map(len, parts))), *parts]


def job_message(job: Job) -> jobs_pb.Job:
    """Converts a job to a message, without its result."""
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
    return message


def _moment(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e6) * 1000)
