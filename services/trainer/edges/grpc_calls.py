"""The gRPC edge of training jobs: `flambeau.v1.Training`, health and reflection.

In: request messages, on the event loop (grpc.aio: calls are few and long). Out: responses; a
`ServingError` becomes a gRPC status.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.flambeau.v1 import training_pb2 as pb
from services.access.audit import refusals_audited
from services.access.authenticator import Authenticator
from services.access.caller import Principal
from services.access.credential import secret_among
from services.errors import ServingError
from services.ports import port_error
from services.trainer.edges.grpc_connections import NO_LIMIT, PINGS, ConnectionLimits
from services.trainer.edges.message_fields import read_message
from services.trainer.records import JobEvent, TrainingJob
from services.trainer.training_job_service import Submission, TrainingJobService

logger = logging.getLogger("flambeau.trainer")

SERVICE = "flambeau.v1.Training"
MAX_CALLS = 512
"""Maximum concurrent calls, including those that follow a job; more are refused."""
MESSAGE_SPARE_BYTES = 4 * 2**20
"""Maximum size of a submission beside its bundle."""
ACTS = {"SubmitJob": "submit", "CancelJob": "cancel", "ResumeJob": "resume"}
"""Names of the management calls in the audit log."""
Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[Any, Principal], Awaitable[Message]]


class TrainingCalls:
    """The calls of the gRPC service.

    Args:
        service: service that executes the calls.
        authenticator: authenticator of clients, if credentials are required.
    """

    def __init__(self, service: TrainingJobService, authenticator: Authenticator | None) -> None:
        self._service = service
        self._authenticator = authenticator

    def handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        """Returns the handlers by name."""
        calls: dict[str, tuple[Answer, type[Message]]] = {
            "SubmitJob": (self._submit, pb.SubmitTrainingRequest),
            "GetJob": (self._get, pb.GetTrainingRequest),
            "ListJobs": (self._list, pb.ListTrainingRequest),
            "CancelJob": (self._cancel, pb.CancelTrainingRequest),
            "ResumeJob": (self._resume, pb.ResumeTrainingRequest),
        }
        found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answering(call, message, ACTS.get(name, "")),
                response_serializer=lambda reply: reply.SerializeToString(),
            )
            for name, (call, message) in calls.items()
        }
        found["WatchJob"] = grpc.unary_stream_rpc_method_handler(
            self._watch,
            response_serializer=lambda event: event.SerializeToString(),
        )
        return found

    async def _submit(self, asked: pb.SubmitTrainingRequest, principal: Principal) -> Message:
        job = await self._service.submit(
            Submission(
                recipe=asked.recipe,
                name=asked.name or "the recipe",
                overrides=tuple(asked.overrides),
                bundle=asked.bundle,
                idempotency_key=asked.idempotency_key,
            ),
            principal,
        )
        return job_message(job)

    async def _get(self, asked: pb.GetTrainingRequest, principal: Principal) -> Message:
        return job_message(await self._service.find(asked.id, principal))

    async def _list(self, asked: pb.ListTrainingRequest, principal: Principal) -> Message:
        state = _state_name(asked.state) if asked.state else ""
        jobs = await self._service.newest(state, asked.limit, principal)
        return pb.ListTrainingResponse(jobs=[job_message(job, with_recipe=False) for job in jobs])

    async def _cancel(self, asked: pb.CancelTrainingRequest, principal: Principal) -> Message:
        return job_message(await self._service.cancel(asked.id, principal))

    async def _resume(self, asked: pb.ResumeTrainingRequest, principal: Principal) -> Message:
        return job_message(await self._service.resume(asked.id, principal))

    async def _watch(self, data: bytes, context: Context) -> AsyncIterator[pb.TrainingEvent]:
        try:
            principal = self._principal(context)
            asked = read_message(pb.WatchTrainingRequest, data)
            pages = await self._service.watch(asked.id, asked.after, asked.follow, principal)
            async for events in pages:
                for event in events:
                    yield event_message(event)
        except ServingError as error:
            await _refuse(context, error)

    def _answering(
        self, call: Answer, kind: type[Message], act: str
    ) -> Callable[[bytes, Context], Awaitable[Message]]:
        async def answer(data: bytes, context: Context) -> Message:
            try:
                with refusals_audited(act, "", "", context.peer()):
                    request = read_message(kind, data)
                return await call(
                    request, self._principal(context, act, getattr(request, "id", ""))
                )
            except ServingError as error:
                await _refuse(context, error)
            except Exception:
                logger.exception("a call failed")
                await context.abort(
                    grpc.StatusCode.INTERNAL, "internal error; see the service's log"
                )
            raise AssertionError("abort raises")

        return answer

    def _principal(self, context: Context, act: str = "", target: str = "") -> Principal:
        """Returns the client of a call; `act` and `target` are as for `Authenticator.principal`.

        Raises:
            InvalidRequestError: there are two credentials.
            UnauthenticatedError: the credential is missing or unknown.
            RateLimitedError: the client exceeds its rate limit.
        """
        if self._authenticator is None:
            return Principal(None, context.peer())
        given = context.invocation_metadata() or ()
        with refusals_audited(act, target, "", context.peer()):
            secret = secret_among((name, str(value)) for name, value in given)
        return self._authenticator.principal(secret, context.peer(), act, target)


class TrainingGrpcEdge:
    """The gRPC server.

    Args:
        service: service that executes the calls.
        max_bundle_bytes: maximum size of a bundle.
        authenticator: authenticator of clients, if credentials are required.
        limits: limits of connections.
    """

    def __init__(
        self,
        service: TrainingJobService,
        max_bundle_bytes: int,
        authenticator: Authenticator | None = None,
        limits: ConnectionLimits = NO_LIMIT,
    ) -> None:
        largest = max_bundle_bytes + MESSAGE_SPARE_BYTES
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_CALLS,
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                *PINGS,
                *limits.options(),
            ],
        )
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        handlers = TrainingCalls(service, authenticator).handlers()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    async def start(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> int:
        """Starts to serve, with TLS if there are credentials; 0 picks a port. Returns the port.

        Raises:
            PortError: it cannot be bound.
        """
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(f"{host}:{port}")
            else:
                bound = self._server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError as error:
            raise port_error(port, "grpc_port", str(error)) from error
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return int(bound)

    async def stop(self, grace_s: float) -> None:
        """Reports it to health watchers, refuses new calls, and ends others after `grace_s`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def job_message(job: TrainingJob, *, with_recipe: bool = True) -> pb.TrainingJob:
    """Converts a job to a message."""
    message = pb.TrainingJob(
        id=job.id,
        name=job.name,
        model=job.model,
        state=f"STATE_{job.state.upper()}",
        created_at=_moment(job.created_at),
        submitter=job.submitter,
        attempts=job.attempts,
        epoch=job.epoch,
        worker=job.worker,
        run_folder=job.run_folder,
        version=job.version or 0,
        error=job.error,
        cancel_asked=job.cancel_asked,
        bundle_sha256=job.bundle_sha256,
        recipe=job.recipe if with_recipe else "",
    )
    if job.started_at is not None:
        message.started_at.CopyFrom(_moment(job.started_at))
    if job.finished_at is not None:
        message.finished_at.CopyFrom(_moment(job.finished_at))
    return message


def event_message(event: JobEvent) -> pb.TrainingEvent:
    """Converts an event to a message."""
    return pb.TrainingEvent(
        seq=event.seq,
        time=_moment(event.time),
        attempt=event.attempt,
        kind=f"KIND_{event.kind.upper()}",
        text=event.text,
        state=f"STATE_{event.state.upper()}" if event.state else None,
        epoch=event.epoch or 0,
        metrics=event.metrics,
    )


async def _refuse(context: Context, error: ServingError) -> None:
    await context.abort(grpc.StatusCode[error.grpc_code], str(error))


def _state_name(value: "pb.TrainingJob.State") -> str:
    if value not in pb.TrainingJob.State.values():
        return str(value)  # the service refuses it as an unknown state
    return pb.TrainingJob.State.Name(value).removeprefix("STATE_").lower()


def _moment(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e6) * 1000)
