"""The gRPC edge: `inference.GRPCInferenceService`, health and reflection, on one port.

In: the protocol's messages. Out: its answers, or a gRPC status with the error's message.

grpcio's threads parse, wait and serialise; everything else runs on the event loop, which owns the
directory and the queue. Calls reach it through one mailbox (docs/adr/0005: what each layout
costs). Whoever wires a server needs `bind`, `start`, `announce_health` and `stop`, and nothing of
grpcio: another implementation of the protocol offers the same four.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos import open_inference_pb2 as pb
from services.access.audit import refusals_audited
from services.access.caller import Visitor
from services.errors import InvalidRequestError, ServingError
from services.gateway.admission import Admission
from services.gateway.grpc_infer import InferHandler
from services.gateway.grpc_jobs import SERVICE as JOB_SERVICE
from services.gateway.grpc_jobs import GrpcJobs
from services.gateway.grpc_mailbox import Mailbox
from services.gateway.grpc_replies import failure, parser, refuse, refuse_gone, secret_in
from services.gateway.grpc_threads import become_patient, starting_patient_threads
from services.gateway.grpc_verification import ACT as VERIFY
from services.gateway.grpc_verification import SERVICE as VERIFICATION_SERVICE
from services.gateway.grpc_verification import GrpcVerification
from services.gateway.job_desk import JobDesk
from services.gateway.ledger import Ledger
from services.gateway.server_facts import EXTENSIONS, NAME, ServerFacts
from services.gateway.verification_desk import VerificationDesk
from services.grpc_connections import NO_LIMIT, PINGS, ConnectionLimits

if TYPE_CHECKING:
    from services.access.door import Door

logger = logging.getLogger("flambeau.grpc")

SERVICE = "inference.GRPCInferenceService"
SERVICES = (SERVICE, JOB_SERVICE, VERIFICATION_SERVICE)
SPARE_CALLS = 32
"""Calls beyond `max_calls`, a thread each: a server full of inference still answers for its health,
and refuses more of it in words. Beyond these grpcio refuses by itself."""
MAX_METADATA_BYTES = 16 * 1024
"""All of a call's metadata together; a token of an identity provider may take half of it."""
LAST_CALLS_S = 5
"""How long cancelled calls may take to be gone; none needs a hundredth of it."""

Handler = Callable[[Any, grpc.ServicerContext], Message]
Answer = Callable[[Any, Visitor], Message]
Answered = Callable[[Message | ServingError], None]


class GrpcEdge:
    """The gRPC server of a gateway.

    Args:
        admission: lets inferences in.
        facts: what the metadata calls tell.
        ledger: counts inferences, and what is refused.
        max_request_bytes: largest message.
        max_calls: inferences that may wait for their answers at once, a thread each.
        verifications: where versions are verified.
        limits: of connections.
        desk: where jobs are taken in, if there are any.
        door: knows callers, where they are asked for credentials.
    """

    def __init__(
        self,
        admission: Admission,
        facts: ServerFacts,
        ledger: Ledger,
        *,
        max_request_bytes: int,
        max_calls: int,
        verifications: VerificationDesk,
        limits: ConnectionLimits = NO_LIMIT,
        desk: JobDesk | None = None,
        door: "Door | None" = None,
    ) -> None:
        self._facts = facts
        self._ledger = ledger
        self._door = door
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._infer = InferHandler(admission, ledger, self._mailbox, max_calls, door)
        self._jobs = GrpcJobs(admission, ledger, desk)
        self._verification = GrpcVerification(verifications)
        threads = max_calls + SPARE_CALLS
        self._threads = ThreadPoolExecutor(threads, "grpc", initializer=become_patient)
        with starting_patient_threads():
            self._server = grpc.server(
                self._threads,
                maximum_concurrent_rpcs=threads,
                options=[
                    ("grpc.max_receive_message_length", max_request_bytes),
                    ("grpc.max_send_message_length", -1),
                    ("grpc.so_reuseport", 0),
                    *PINGS,
                    *limits.options(),
                    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                ],
            )
        # Its non-blocking watches are written to under a lock which a caller that leaves needs
        # as well: `set` would hang the event loop. A blocking one only takes a thread.
        self._health = health.HealthServicer(experimental_non_blocking=False)
        self._announced: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Answers that wait for something."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, self._handlers()),
                grpc.method_handlers_generic_handler(JOB_SERVICE, self._job_handlers()),
                grpc.method_handlers_generic_handler(
                    VERIFICATION_SERVICE, self._verification_handlers()
                ),
            )
        )
        reflection.enable_server_reflection(
            (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def bind(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        """Binds the port; 0 picks a free one. Returns the port.

        Args:
            host: address.
            port: number.
            credentials: with them, the port speaks TLS.

        Raises:
            RuntimeError: the port cannot be bound.
        """
        if credentials is None:
            return int(self._server.add_insecure_port(f"{host}:{port}"))
        return int(self._server.add_secure_port(f"{host}:{port}", credentials))

    def start(self) -> None:
        """Begins to answer."""
        self.announce_health()
        with starting_patient_threads():
            self._server.start()

    def announce_health(self) -> None:
        """Tells those who watch grpc.health.v1 whether the server is ready."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if self._facts.is_ready()
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        if status != self._announced:
            self._announced = status
            for service in ("", *SERVICES):
                self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, gives running ones their time, and then cancels them."""
        stopped = self._server.stop(grace_s)
        if not await asyncio.to_thread(stopped.wait, grace_s + LAST_CALLS_S):
            logger.warning("gRPC did not stop in time")
        self._threads.shutdown(wait=False)

    def _handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        calls: dict[str, tuple[Handler, type[Message]]] = {
            "ServerLive": (self._on_loop(self._server_live, is_open=True), pb.ServerLiveRequest),
            "ServerReady": (self._on_loop(self._server_ready, is_open=True), pb.ServerReadyRequest),
            "ModelReady": (self._on_loop(self._model_ready), pb.ModelReadyRequest),
            "ServerMetadata": (self._on_loop(self._server_metadata), pb.ServerMetadataRequest),
            "ModelMetadata": (self._on_loop(self._model_metadata), pb.ModelMetadataRequest),
            "ModelInfer": (self._infer, pb.ModelInferRequest),
        }
        return _method_handlers(calls)

    def _job_handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        return _method_handlers(
            {
                name: (self._in_a_task(answer), message)
                for name, (answer, message) in self._jobs.calls().items()
            }
        )

    def _verification_handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        return _method_handlers(
            {
                name: (self._for_the_allowed(self._in_a_task(answer, VERIFY)), message)
                for name, (answer, message) in self._verification.calls().items()
            }
        )

    def _for_the_allowed(self, handler: Handler) -> Handler:
        """The same handler, for those who may verify.

        Whom the door knows is asked for the scope once it is clear for which model.
        """

        def call(request: Any, context: grpc.ServicerContext) -> Message:
            try:
                self._verification.check(context.peer(), is_known=self._door is not None)
            except ServingError as error:
                refuse(context, error)
            return handler(request, context)

        return call

    def _on_loop(self, answer: Answer, is_open: bool = False) -> Handler:
        """A handler of gRPC's threads that has the event loop answer, and waits for it."""

        def start(request: Message, visitor: Visitor, answered: Answered) -> None:
            try:
                visitor.take_request()
                answered(answer(request, visitor))
            except ServingError as error:
                answered(error)
            except Exception as error:
                logger.exception("a call failed in the gateway")
                answered(failure(error))

        return self._handler(start, is_open)

    def _in_a_task(
        self, answer: Callable[[Any, Visitor], Awaitable[Message]], act: str = ""
    ) -> Handler:
        """The same, for an answer that itself waits; `act` is as for `_handler`."""

        async def run(request: Message, visitor: Visitor, answered: Answered) -> None:
            try:
                with refusals_audited(act, "", visitor.name, visitor.peer):
                    visitor.take_request()
                answered(await answer(request, visitor))
            except ServingError as error:
                answered(error)
            except Exception as error:
                logger.exception("a call failed in the gateway")
                answered(failure(error))

        def start(request: Message, visitor: Visitor, answered: Answered) -> None:
            task = asyncio.get_running_loop().create_task(run(request, visitor, answered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return self._handler(start, act=act)

    def _handler(
        self, start: Callable[[Any, Visitor, Answered], None], is_open: bool = False, act: str = ""
    ) -> Handler:
        """A handler of gRPC's threads that begins an answer on the event loop, and waits for it.

        Args:
            start: begins it.
            is_open: whether nobody is asked for a credential.
            act: of management, whose refusals are written down; empty for none.
        """

        def call(request: Message | InvalidRequestError, context: grpc.ServicerContext) -> Message:
            visitor = Visitor(None, context.peer())
            if self._door is not None and not is_open:
                try:
                    with refusals_audited(act, "", "", visitor.peer):
                        visitor = visitor._replace(caller=self._door.admit(secret_in(context)))
                except ServingError as error:
                    refuse(context, error)
            if isinstance(request, InvalidRequestError):
                refuse(context, request)
            outcomes: SimpleQueue[Message | ServingError | None] = SimpleQueue()

            if context.add_callback(lambda: outcomes.put(None)):
                self._mailbox.post(lambda: start(request, visitor, outcomes.put))
            else:
                outcomes.put(None)
            outcome = outcomes.get()
            if outcome is None:
                refuse_gone(context)
            if isinstance(outcome, ServingError):
                refuse(context, outcome)
            return outcome

        return call

    def _server_live(self, _: pb.ServerLiveRequest, __: Visitor) -> Message:
        return pb.ServerLiveResponse(live=True)

    def _server_ready(self, _: pb.ServerReadyRequest, __: Visitor) -> Message:
        return pb.ServerReadyResponse(ready=self._facts.is_ready())

    def _model_ready(self, request: pb.ModelReadyRequest, visitor: Visitor) -> Message:
        ready = visitor.sees(request.name) and self._facts.is_model_ready(
            request.name, request.version
        )
        return pb.ModelReadyResponse(ready=ready)

    def _server_metadata(self, _: pb.ServerMetadataRequest, __: Visitor) -> Message:
        return pb.ServerMetadataResponse(
            name=NAME, version=self._facts.version, extensions=EXTENSIONS
        )

    def _model_metadata(self, request: pb.ModelMetadataRequest, visitor: Visitor) -> Message:
        visitor.require_seen(request.name)
        with self._ledger.counting_refusals():
            facts = self._facts.model(request.name, request.version)
        inputs, outputs = (
            [
                pb.ModelMetadataResponse.TensorMetadata(
                    name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
                )
                for tensor in tensors
            ]
            for tensors in (facts.inputs, facts.outputs)
        )
        return pb.ModelMetadataResponse(
            name=facts.name,
            versions=facts.versions,
            platform=facts.platform,
            inputs=inputs,
            outputs=outputs,
            properties=facts.properties,
        )


def _method_handlers(
    calls: Mapping[str, tuple[Handler, type[Message]]],
) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
    return {
        name: grpc.unary_unary_rpc_method_handler(
            handler,
            request_deserializer=parser(message),
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        for name, (handler, message) in calls.items()
    }
