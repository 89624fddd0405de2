"""A real gRPC server on 127.0.0.1 that does as its test says, and records what reached it."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Self

import grpc

from flambeau.channel import MESSAGES, SERVICE, STREAMS
from flambeau.protocol.messages import inference as pb

Trailers = tuple[tuple[str, str], ...]
Behaviour = Callable[[Any, Any], Any]
"""Function of a request and its gRPC context; returns the reply of a method, or all replies."""


@dataclass(frozen=True)
class Received:
    """One attempt of one call, as it arrived."""

    method: str
    request: Any
    time_remaining_s: float | None


class ScriptedServer:
    """Serves one model, `digits`, that answers every input as an output of the same name."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[Received] = []
        self.released = threading.Event()
        self.digits = metadata(
            inputs=[("image", "FP32", [-1, 2, 3])], outputs=[("image", "FP32", [-1, 2, 3])]
        )
        self.behaviours: dict[str, Behaviour] = {
            "ServerLive": lambda request, context: pb.ServerLiveResponse(live=True),
            "ServerReady": lambda request, context: pb.ServerReadyResponse(ready=True),
            "ModelReady": lambda request, context: pb.ModelReadyResponse(
                ready=request.name == "digits"
            ),
            "ModelMetadata": self._metadata,
            "ModelInfer": echo,
            "ModelStreamInfer": echo_twice,
        }
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=16),
            options=[("grpc.max_receive_message_length", 8 * 1024 * 1024)],
        )
        handlers = {method: self._handler(method) for method in MESSAGES}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.released.set()
        self._server.stop(grace=None).wait()

    def attempts(self, method: str = "ModelInfer") -> int:
        """Returns the number of calls of a method, with retries."""
        return sum(received.method == method for received in self.received)

    def hang(self, request: Any, context: Any) -> Any:
        """A behaviour that answers when the server ends, or too late for any test."""
        self.released.wait(5)
        return pb.ModelInferResponse()

    def _metadata(self, request: Any, context: Any) -> Any:
        if request.name != "digits":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model '{request.name}' is served")
        return self.digits

    def _handler(self, method: str) -> Any:
        def handle(request: Any, context: Any) -> Any:
            self.received.append(Received(method, request, context.time_remaining()))
            return self.behaviours[method](request, context)

        def handle_stream(requests: Any, context: Any) -> Any:
            (request,) = requests
            yield from handle(request, context)

        request_type, reply_type = MESSAGES[method]
        if method in STREAMS:
            return grpc.stream_stream_rpc_method_handler(
                handle_stream,
                request_deserializer=request_type.FromString,
                response_serializer=reply_type.SerializeToString,
            )
        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=request_type.FromString,
            response_serializer=reply_type.SerializeToString,
        )


def metadata(
    inputs: list[tuple[str, str, list[int]]],
    outputs: list[tuple[str, str, list[int]]],
    **properties: str,
) -> Any:
    """A reply to ModelMetadata, from (name, datatype, shape) of every tensor."""
    reply = pb.ModelMetadataResponse(name="digits", versions=["1"], properties=properties)
    for name, datatype, shape in inputs:
        reply.inputs.add(name=name, datatype=datatype, shape=shape)
    for name, datatype, shape in outputs:
        reply.outputs.add(name=name, datatype=datatype, shape=shape)
    return reply


def echo(request: Any, context: Any) -> Any:
    """A behaviour: every input comes back as an output, or those that were asked for."""
    reply = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    wanted = {output.name for output in request.outputs}
    for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True):
        if not wanted or tensor.name in wanted:
            reply.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            reply.raw_output_contents.append(data)
    return reply


def echo_twice(request: Any, context: Any) -> Iterator[Any]:
    """A behaviour: two answers, each as that of `echo`."""
    for _ in range(2):
        yield pb.ModelStreamInferResponse(infer_response=echo(request, context))


def fail(
    code: str, message: str, *, times: int | None = None, trailers: Trailers = ()
) -> Behaviour:
    """A behaviour: a gRPC status, for the first `times` attempts, after which it echoes."""
    left = iter(range(times)) if times is not None else iter(int, 1)

    def behave(request: Any, context: Any) -> Any:
        if next(left, None) is not None:
            context.set_trailing_metadata(trailers)
            context.abort(grpc.StatusCode[code], message)
        return echo(request, context)

    return behave
