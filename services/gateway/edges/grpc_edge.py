"""The gRPC edge: `inference.GRPCInferenceService`, jobs, the registry, health and reflection.

In: heads of gRPC calls. Out: their handlers: `grpc_infer.py` for inference, functions here for
everything else. Everything runs on the event loop, on HTTP/2 frames of our own (docs/adr/0030 has
the cost of grpcio's server). The server calls `start`, `announce_health` and `stop`.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from protos import open_inference_pb2 as pb
from protos.flambeau.v1.jobs_pb2 import SubmitJobRequest
from services.access.caller import Principal
from services.errors import ServingError, TooManyInFlightError, UnsupportedError
from services.gateway.admission import Admission
from services.gateway.edges import grpc_health, grpc_reflection
from services.gateway.edges.administration.calls import AdministrationCalls
from services.gateway.edges.administration.grpc_calls import grpc_calls
from services.gateway.edges.grpc_codec import Encode, encode_raw_always, encode_serialized
from services.gateway.edges.grpc_health import GrpcHealth
from services.gateway.edges.grpc_infer import GRPC, GrpcInferRoute, InferenceCall, secret_in
from services.gateway.edges.grpc_jobs import SERVICE as JOB_SERVICE
from services.gateway.edges.grpc_jobs import GrpcJobs
from services.gateway.edges.grpc_large_answer import SlowAnswer
from services.gateway.edges.grpc_reflection import GrpcReflection
from services.gateway.edges.predict import grpc_predict, model_calls
from services.gateway.edges.predict.grpc_predict import PredictCall
from services.gateway.edges.predict.model_calls import ModelCalls
from services.gateway.edges.streams.grpc_stream import GrpcStreams
from services.gateway.inference import InferencePath, Sampler
from services.gateway.jobs.job_service import JobService
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.gateway.shared_regions.regions import SharedRegions
from services.registry.grpc_calls import SERVICE as REGISTRY_SERVICE
from services.registry.grpc_calls import GrpcRegistry, Stream
from services.registry.registry import Registry
from services.wire.body import SMALL_BODY_BYTES, Body
from services.wire.byte_budget import ByteBudget
from services.wire.compression import CompressionThread
from services.wire.http2.grpc_call import Call, parsed
from services.wire.http2.grpc_connection import GrpcConnection
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.grpc_port import GrpcPort
from services.wire.http2.simple_call import SimpleCall, failure
from services.wire.http2.streamed_answer import StreamedAnswer
from services.wire.loop_turns import LoopTurns
from services.wire.open_port import PortLimits, PortServer

if TYPE_CHECKING:
    from services.access.authenticator import Authenticator

logger = logging.getLogger("flambeau.grpc")

SERVICE = "inference.GRPCInferenceService"
SERVICES = (
    SERVICE,
    JOB_SERVICE,
    REGISTRY_SERVICE,
    grpc_predict.SERVICE,
    model_calls.SERVICE,
)
REFLECTION_SERVICES = (grpc_reflection.SERVICE, grpc_reflection.SERVICE_V1)
INFER = f"/{SERVICE}/ModelInfer"
STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"
MAX_STREAMED_ANSWERS = 256
"""Streams of answers of all connections, each with a task and a message that waits for its peer."""
MAX_STREAMED_OF_ONE = 32
"""Those of one caller: its name, or its address where no credentials are required."""

Answer = Callable[[Any, Principal], Message]
Route = Callable[[GrpcHead], None]
Read = Callable[[Body], Any]
"""Reads a request message; raises `InvalidRequestError`."""


class GrpcEdge:
    """Routes and answers the calls of the gRPC port.

    Args:
        admission: admission of inferences.
        facts: source of the metadata responses.
        accounting: counters of inferences and refusals.
        limits: limits of a connection and a call.
        budget: budget of the bytes that the process buffers.
        turns: turns of the event loop, shared with the other port.
        compression: compression of large bodies, shared with the other port.
        service: job service, on servers that keep jobs.
        authenticator: authenticator of callers, where credentials are required.
        sampler: sampler of payloads, if configured.
        tls: TLS of the port; None for plain text.
        administration: calls beside inference.
        always_raw: True to answer with raw outputs, whatever the form of the request.
        regions: shared memory of callers; None where it is off.
        registry: registry of the model store; None in processes without one.
    """

    def __init__(
        self,
        admission: Admission,
        facts: ServerFacts,
        accounting: RequestAccounting,
        *,
        limits: PortLimits,
        budget: ByteBudget,
        turns: LoopTurns | None = None,
        compression: CompressionThread | None = None,
        service: JobService | None = None,
        authenticator: "Authenticator | None" = None,
        sampler: Sampler | None = None,
        tls: ssl.SSLContext | None = None,
        administration: AdministrationCalls | None = None,
        always_raw: bool = False,
        regions: SharedRegions | None = None,
        registry: Registry | None = None,
    ) -> None:
        self._path = InferencePath(GRPC, admission, accounting, sampler, regions)
        self._encode = encode_raw_always if always_raw else encode_serialized
        self._facts = facts
        self._accounting = accounting
        self._authenticator = authenticator
        self._jobs = GrpcJobs(admission, accounting, service)
        self._registry = GrpcRegistry(registry)
        self._administration = administration or AdministrationCalls(
            admission.directory, accounting
        )
        self._health = GrpcHealth(SERVICES)
        self._streams = GrpcStreams()
        self._reflection = GrpcReflection((*SERVICES, grpc_health.SERVICE, *REFLECTION_SERVICES))
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks of calls whose handlers await."""
        self._streamed: dict[asyncio.Task[None], str] = {}
        """Callers, by the task of a stream of answers."""
        self._routes = self._all_routes()
        port = GrpcPort(self._route, limits, accounting.metrics, budget, turns, compression)
        self._server = PortServer(port, partial(GrpcConnection, port), tls)

    async def start(self, listening: socket.socket) -> None:
        """Starts serving on a bound socket, which the edge then owns."""
        self.announce_health()
        await self._server.start(listening)

    def announce_health(self) -> None:
        """Sends the server's readiness to watchers of grpc.health.v1."""
        self._health.announce(self._facts.is_ready())

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, lets running ones finish within `grace_s`, and then drops them."""
        self._streams.leave()
        await self._server.stop(grace_s)

    def _route(self, head: GrpcHead) -> None:
        """Finds the handler of a call."""
        route = self._routes.get(head.path)
        if route is not None:
            route(head)
            return
        head.open = Call
        head.most_bytes = SMALL_BODY_BYTES
        head.refusal = head.refusal or UnsupportedError(
            f"unknown method '{head.path[:200]}'; reflection lists the methods"
        )

    def _all_routes(self) -> dict[str, Route]:
        quick: dict[str, tuple[Answer, type[Message], bool]] = {
            "ServerLive": (self._server_live, pb.ServerLiveRequest, True),
            "ServerReady": (self._server_ready, pb.ServerReadyRequest, True),
            "ModelReady": (self._model_ready, pb.ModelReadyRequest, False),
            "ServerMetadata": (self._server_metadata, pb.ServerMetadataRequest, False),
            "ModelMetadata": (self._model_metadata, pb.ModelMetadataRequest, False),
        }
        routes: dict[str, Route] = {
            f"/{SERVICE}/{name}": partial(self._route_quick, answer, message, is_open)
            for name, (answer, message, is_open) in quick.items()
        }
        for name, (answer, message) in self._jobs.calls().items():
            routes[f"/{JOB_SERVICE}/{name}"] = partial(
                self._route_slow,
                answer,
                partial(self._read_job_call, message),
                None if message is SubmitJobRequest else SMALL_BODY_BYTES,
            )
        for name, call in self._registry.calls().items():
            routes[f"/{REGISTRY_SERVICE}/{name}"] = partial(
                self._route_slow, call.answer, call.read, call.most_bytes
            )
        for name, (stream, message) in self._registry.streams().items():
            route = partial(self._route_streamed, stream, message)
            routes[f"/{REGISTRY_SERVICE}/{name}"] = route
        small = {f"/{SERVICE}/{name}": c for name, c in grpc_calls(self._administration).items()}
        small |= ModelCalls(self._path.admission.directory).calls()
        for name, (answer, message) in small.items():
            read = partial(parsed, message)
            routes[name] = partial(self._route_slow, answer, read, SMALL_BODY_BYTES)
        routes[f"/{grpc_predict.SERVICE}/Predict"] = self._route_predict
        routes[INFER] = self._route_infer
        routes[STREAM_INFER] = self._route_stream
        routes[f"/{grpc_health.SERVICE}/Check"] = _opening(partial(SimpleCall, self._health.check))
        routes[f"/{grpc_health.SERVICE}/List"] = _opening(partial(SimpleCall, self._health.list))
        routes[f"/{grpc_health.SERVICE}/Watch"] = _opening(self._health.watch)
        for service in REFLECTION_SERVICES:
            routes[f"/{service}/ServerReflectionInfo"] = _opening(self._reflection.open)
        return routes

    def _route_infer(self, head: GrpcHead) -> None:
        head.open = partial(InferenceCall, self._infer_route(head))

    def _route_predict(self, head: GrpcHead) -> None:
        head.open = partial(PredictCall, self._infer_route(head, grpc_predict.encode))

    def _infer_route(self, head: GrpcHead, encode: Encode | None = None) -> GrpcInferRoute:
        secret = self._turn_away(head)
        authorization = None
        if self._authenticator is not None:
            authorization = self._authenticator.authorization(secret, "infer")
        return GrpcInferRoute(self._path, head, authorization, encode or self._encode)

    def _route_stream(self, head: GrpcHead) -> None:
        head.open = partial(self._streams.open, self._infer_route(head))

    def _turn_away(self, head: GrpcHead) -> str:
        """Refuses unauthenticated callers before their message; returns others' credential."""
        if self._authenticator is not None and head.refusal is None:
            try:
                secret = secret_in(head)
                self._authenticator.admit(secret)
            except ServingError as error:
                head.refusal = error
            else:
                return secret
        return ""

    def _route_quick(
        self, answer: Answer, message: type[Message], is_open: bool, head: GrpcHead
    ) -> None:
        """Routes a call that is answered at once; `is_open` needs no authentication."""
        head.most_bytes = SMALL_BODY_BYTES
        if not is_open:
            self._turn_away(head)

        def start(body: Body, call: SimpleCall) -> None:
            principal = self._principal(call, is_open)
            request = parsed(message, body)
            principal.take_request()
            call.reply(answer(request, principal).SerializeToString())

        head.open = partial(SimpleCall, start)

    def _read_job_call(self, message: type[Message], body: Body) -> Message:
        if message is SubmitJobRequest:
            self._jobs.check_submitted(body)
        return parsed(message, body)

    def _route_slow(
        self, answer: SlowAnswer, read: Read, most_bytes: int | None, head: GrpcHead
    ) -> None:
        """Routes a call whose handler awaits.

        Args:
            answer: the handler.
            read: reads the request message.
            most_bytes: limit of it; None for the port's.
            head: head of the call.
        """
        head.most_bytes = most_bytes
        self._turn_away(head)

        def start(body: Body, call: SimpleCall) -> None:
            principal = self._principal(call)
            request = read(body)
            self._keep(asyncio.get_running_loop().create_task(run(request, principal, call)))

        async def run(request: Any, principal: Principal, call: SimpleCall) -> None:
            try:
                principal.take_request()
                with call.working():
                    parts = await answer(request, principal, call.reserve)
                call.reply_in_parts(parts)
            except ServingError as error:
                call.fail(error)
            except Exception as error:
                logger.exception("a call failed in the gateway")
                call.fail(failure(error))

        head.open = partial(SimpleCall, start)

    def _route_streamed(self, stream: Stream, message: type[Message], head: GrpcHead) -> None:
        """Routes a call that is answered with several messages."""
        head.most_bytes = SMALL_BODY_BYTES
        self._turn_away(head)

        def start(body: Body, call: StreamedAnswer) -> None:
            principal = self._principal(call)
            request = parsed(message, body)
            if len(self._streamed) >= MAX_STREAMED_ANSWERS:
                raise TooManyInFlightError(
                    f"{MAX_STREAMED_ANSWERS} calls with streams of answers are open here, the "
                    "limit; try again"
                )
            name = principal.name or principal.peer
            if list(self._streamed.values()).count(name) >= MAX_STREAMED_OF_ONE:
                raise TooManyInFlightError(
                    f"{MAX_STREAMED_OF_ONE} calls with streams of answers are yours here, the "
                    "limit of one caller; end some"
                )
            principal.take_request()
            task = call.answer_with(stream(request, principal))
            self._streamed[task] = name
            task.add_done_callback(self._streamed.pop)

        head.open = partial(StreamedAnswer, start)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _principal(self, call: SimpleCall, is_open: bool = False) -> Principal:
        """Identifies the caller of a call.

        Raises:
            ServingError: the caller is not authenticated, where that is required.
        """
        peer = call.connection.peer
        if self._authenticator is None or is_open:
            return Principal(None, peer)
        return Principal(self._authenticator.admit(secret_in(call.head)), peer)

    def _server_live(self, _: pb.ServerLiveRequest, __: Principal) -> Message:
        return pb.ServerLiveResponse(live=True)

    def _server_ready(self, _: pb.ServerReadyRequest, __: Principal) -> Message:
        return pb.ServerReadyResponse(ready=self._facts.is_ready())

    def _model_ready(self, request: pb.ModelReadyRequest, principal: Principal) -> Message:
        ready = principal.sees(request.name) and self._facts.is_model_ready(
            request.name, request.version
        )
        return pb.ModelReadyResponse(ready=ready)

    def _server_metadata(self, _: pb.ServerMetadataRequest, __: Principal) -> Message:
        return pb.ServerMetadataResponse(
            name=self._facts.name,
            version=self._facts.version,
            extensions=self._facts.extensions,
        )

    def _model_metadata(self, request: pb.ModelMetadataRequest, principal: Principal) -> Message:
        principal.require_seen(request.name)
        with self._accounting.counting_refusals():
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


def _opening(open_call: Any) -> Route:
    """Returns a route for calls that need no state of their own."""

    def route(head: GrpcHead) -> None:
        head.most_bytes = SMALL_BODY_BYTES
        head.open = open_call

    return route
