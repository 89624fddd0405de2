"""The gRPC edge: `inference.GRPCInferenceService`, health and reflection, on one port.

In: the protocol's messages. Out: its answers, or a gRPC status with the error's message. Every
reply's trailing metadata carries `x-request-id`.

grpcio's threads parse, wait and serialise; everything else runs on the event loop, which owns the
directory and the queue (docs/adr/0002: half the CPU of grpcio's own asyncio server, and larger
batches). A call that is cancelled or out of time cancels its task on the loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos import open_inference_pb2 as pb
from services.errors import ServingError, TooManyInFlightError
from services.gateway import grpc_codec
from services.gateway.admission import Admission, InferCall
from services.gateway.ledger import REQUEST_ID, Ledger, Record
from services.gateway.server_facts import EXTENSIONS, NAME, ServerFacts

SERVICE = "inference.GRPCInferenceService"
SPARE_CALLS = 32
"""Calls beyond `max_calls`, a thread each: a server full of inference still answers for its health,
and refuses more of it in words. Beyond these grpcio refuses by itself."""

Handler = Callable[[Any, grpc.ServicerContext], Coroutine[Any, Any, Message]]


class GrpcEdge:
    """The gRPC server of a gateway."""

    def __init__(
        self,
        admission: Admission,
        facts: ServerFacts,
        ledger: Ledger,
        *,
        max_request_bytes: int,
        max_calls: int,
    ) -> None:
        self._admission = admission
        self._facts = facts
        self._ledger = ledger
        self._max_calls = max_calls
        self._running = 0
        self._loop = asyncio.get_running_loop()
        self._server = grpc.server(
            ThreadPoolExecutor(max_calls + SPARE_CALLS, "grpc"),
            maximum_concurrent_rpcs=max_calls + SPARE_CALLS,
            options=[
                ("grpc.max_receive_message_length", max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ],
        )
        # Its non-blocking watches are written to under a lock which a caller that leaves needs
        # as well: `set` would hang the event loop. A blocking one only takes a thread.
        self._health = health.HealthServicer(experimental_non_blocking=False)
        self._announced: int | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._handlers()),)
        )
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def bind(self, host: str, port: int) -> int:
        """Binds the port; 0 picks a free one. Returns the port.

        Raises:
            RuntimeError: the port cannot be bound.
        """
        return int(self._server.add_insecure_port(f"{host}:{port}"))

    def start(self) -> None:
        """Begins to answer."""
        self.announce_health()
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
            for service in ("", SERVICE):
                self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, and gives running ones their time."""
        stopped = self._server.stop(grace_s)
        await asyncio.to_thread(stopped.wait)

    def _handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        calls: dict[str, tuple[Handler, type[Message]]] = {
            "ServerLive": (self._server_live, pb.ServerLiveRequest),
            "ServerReady": (self._server_ready, pb.ServerReadyRequest),
            "ModelReady": (self._model_ready, pb.ModelReadyRequest),
            "ServerMetadata": (self._server_metadata, pb.ServerMetadataRequest),
            "ModelMetadata": (self._model_metadata, pb.ModelMetadataRequest),
            "ModelInfer": (self._model_infer, pb.ModelInferRequest),
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(
                self._on_loop(handler),
                request_deserializer=_parser(message),
                response_serializer=lambda reply: reply.SerializeToString(),
            )
            for name, (handler, message) in calls.items()
        }

    def _on_loop(self, handler: Handler) -> Callable[[Any, grpc.ServicerContext], Message]:
        """Runs a handler on the event loop, and turns our errors into gRPC statuses."""

        def call(request: Message | DecodeError, context: grpc.ServicerContext) -> Message:
            if isinstance(request, DecodeError):
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "the request is not a valid message of this call: broken, or text not in UTF-8",
                )
            work = asyncio.run_coroutine_threadsafe(handler(request, context), self._loop)

            def give_up() -> None:
                work.cancel()

            if not context.add_callback(give_up):
                give_up()  # the call ended before it began
            try:
                return work.result()
            except ServingError as error:
                context.abort(grpc.StatusCode[error.grpc_code], str(error))
            except CancelledError:
                context.abort(grpc.StatusCode.CANCELLED, "the caller cancelled the call")

        return call

    async def _server_live(self, _: pb.ServerLiveRequest, __: grpc.ServicerContext) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(self, _: pb.ServerReadyRequest, __: grpc.ServicerContext) -> Message:
        return pb.ServerReadyResponse(ready=self._facts.is_ready())

    async def _model_ready(self, request: pb.ModelReadyRequest, _: grpc.ServicerContext) -> Message:
        ready = self._facts.is_model_ready(request.name, request.version)
        return pb.ModelReadyResponse(ready=ready)

    async def _server_metadata(
        self, _: pb.ServerMetadataRequest, __: grpc.ServicerContext
    ) -> Message:
        return pb.ServerMetadataResponse(
            name=NAME, version=self._facts.version, extensions=EXTENSIONS
        )

    async def _model_metadata(
        self, request: pb.ModelMetadataRequest, _: grpc.ServicerContext
    ) -> Message:
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

    async def _model_infer(
        self, request: pb.ModelInferRequest, context: grpc.ServicerContext
    ) -> Message:
        record = self._ledger.open("grpc")
        given_id = request.id or _metadata(context, REQUEST_ID)
        request_id = record.name(given_id, request.model_name, request.model_version)
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        self._running += 1
        try:
            response = await self._answer(request, context, record)
        except ServingError as error:
            record.close(error.grpc_code, error)
            raise
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            record.close("CANCELLED" if cancelled else "INTERNAL", error)
            raise
        finally:
            self._running -= 1
        record.close("OK")
        return response

    async def _answer(
        self, request: pb.ModelInferRequest, context: grpc.ServicerContext, record: Record
    ) -> pb.ModelInferResponse:
        if self._running > self._max_calls:
            raise TooManyInFlightError(
                f"{self._max_calls} gRPC calls are running here, the limit (max_grpc_calls); "
                "retry later or add servers"
            )
        answer = await self._admission.infer(
            InferCall(
                request_id=record.request_id,
                model=request.model_name,
                version=request.model_version,
                inputs=grpc_codec.decode_inputs(request),
                outputs=[output.name for output in request.outputs],
                timeout_s=context.time_remaining(),
            )
        )
        record.answered(answer)
        return grpc_codec.encode(answer, request)


def _metadata(context: grpc.ServicerContext, name: str) -> str:
    """A text the caller sent beside the message, or nothing."""
    return next((str(v) for key, v in context.invocation_metadata() if key == name), "")


def _parser(message: type[Message]) -> Callable[[bytes], Message | DecodeError]:
    """Parses requests; bytes that are not this message, such as text not in UTF-8, give the error.

    grpcio would answer INTERNAL to a parser that raises or gives None, as if the fault were ours.
    """

    def parse(data: bytes) -> Message | DecodeError:
        try:
            return message.FromString(data)
        except DecodeError as error:
            return error

    return parse
