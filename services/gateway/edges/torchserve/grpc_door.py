"""TorchServe's gRPC ports: inference on one, management on the other.

In: heads of calls. Out: their handlers, in the files beside. Everything runs on the event loop, on
the frames, limits and budget of the other edges.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from protos.torchserve import inference_pb2, management_pb2
from services.errors import ServingError, UnsupportedError
from services.gateway.edge_port import EdgeParts, EdgePort
from services.gateway.edges.torchserve import grpc_statuses
from services.gateway.edges.torchserve.grpc_management import Answer, GrpcManagement
from services.gateway.edges.torchserve.grpc_predictions import (
    PredictionCall,
    PredictionRoute,
    SequenceCall,
    StreamedPredictionCall,
    leave,
)
from services.gateway.edges.torchserve.grpc_tokens import GrpcToken
from services.gateway.torchserve.management import Management
from services.gateway.torchserve.predictions import Predictions
from services.gateway.torchserve.tokens import Kind, Tokens
from services.wire.body import SMALL_BODY_BYTES, Body
from services.wire.http2.grpc_call import Call, parsed
from services.wire.http2.grpc_connection import GrpcConnection
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.grpc_port import GrpcPort
from services.wire.http2.simple_call import SimpleCall, failure
from services.wire.open_port import PortServer

logger = logging.getLogger("flambeau.grpc")

INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"

Route = Callable[[GrpcHead], None]


def grpc_ports(
    predictions: Predictions,
    management: Management,
    tokens: Tokens | None,
    parts: EdgeParts,
    addresses: Mapping[str, tuple[str, int]],
    *,
    is_tls: bool,
) -> list[EdgePort]:
    """Makes both ports.

    Args:
        predictions: predictions over gRPC.
        management: the calls of management.
        tokens: those that callers need; None where they need none.
        parts: parts of the front.
        addresses: host and port by setting.
        is_tls: True for ports that speak TLS, for which there are certificates.
    """
    services = {
        "grpc_inference_port": InferenceService(predictions, management, tokens),
        "grpc_management_port": ManagementService(management, tokens),
    }
    ports = []
    for name, service in services.items():
        host, number = addresses[name]
        server = _ServiceServer(service, parts, is_tls=is_tls)
        ports.append(
            EdgePort(
                name=name, host=host, port=number, server=server, begin_drain=predictions.leave
            )
        )
    return ports


class _SlowCall(SimpleCall):
    """A call that has a task; its caller can abandon what the task downloads.

    Attributes:
        left: set when the caller has left.
    """

    __slots__ = ("left",)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.left = asyncio.Event()

    def abandon(self) -> None:
        """Ends what it downloads; other work goes on."""
        super().abandon()
        self.left.set()


class _Service:
    """The routes of one service.

    Args:
        tokens: those that callers need; None where they need none.
    """

    kind: Kind
    """Kind of the tokens."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks of calls whose handlers await."""
        self.routes: dict[str, Route] = {}

    def leave(self) -> None:
        """Ends calls that would last."""

    def token(self, head: GrpcHead) -> GrpcToken | None:
        """Returns the token of a call; refuses the call before its message if it is wrong."""
        if self._tokens is None:
            return None
        token = GrpcToken(head, self._tokens, self.kind)
        if head.refusal is None:
            try:
                token.check()
            except ServingError as error:
                head.refusal = error
        return token

    def route_slow(
        self,
        answer: Answer,
        message: type[Message],
        respond: Callable[[str], Message],
        head: GrpcHead,
    ) -> None:
        """Routes a call whose handler awaits."""
        head.most_bytes = SMALL_BODY_BYTES
        token = self.token(head)

        def start(body: Body, call: SimpleCall) -> None:
            assert isinstance(call, _SlowCall)
            if token is not None:
                token.check()
            request = parsed(message, body)
            task = asyncio.get_running_loop().create_task(run(request, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        async def run(request: Message, call: _SlowCall) -> None:
            try:
                with call.working():
                    text = await answer(request, call.left)
                call.reply(respond(grpc_statuses.text_of(text)).SerializeToString())
            except ServingError as error:
                call.fail(grpc_statuses.of_management(error))
            except Exception as error:
                logger.exception("a call failed in the gateway")
                call.fail(failure(error))

        head.open = partial(_SlowCall, start)


class InferenceService(_Service):
    """InferenceAPIsService.

    Args:
        predictions: predictions over gRPC.
        management: knows whether all models have their workers.
        tokens: as for `grpc_ports`.
    """

    kind = "inference"

    def __init__(
        self, predictions: Predictions, management: Management, tokens: Tokens | None
    ) -> None:
        super().__init__(tokens)
        self._predictions, self._management = predictions, management
        self._sequences: set[SequenceCall] = set()
        kinds: dict[str, Any] = {
            "Predictions": PredictionCall,
            "StreamPredictions": StreamedPredictionCall,
            "StreamPredictions2": partial(SequenceCall, self._sequences),
        }
        self.routes = {
            f"/{INFERENCE}/{name}": partial(self._route, kind) for name, kind in kinds.items()
        }
        health = inference_pb2.TorchServeHealthResponse
        self.routes[f"/{INFERENCE}/Ping"] = partial(
            self.route_slow, self._ping, Empty, lambda text: health(health=text)
        )

    def leave(self) -> None:
        """Ends sequences: their requests are answered."""
        leave(self._sequences)

    def _route(self, kind: Any, head: GrpcHead) -> None:
        head.open = partial(kind, PredictionRoute(self._predictions, head, self.token(head)))

    async def _ping(self, _: Empty, __: asyncio.Event) -> str:
        return self._management.ping().text


class ManagementService(_Service):
    """ManagementAPIsService.

    Args:
        management: the calls.
        tokens: as for `grpc_ports`.
    """

    kind = "management"

    def __init__(self, management: Management, tokens: Tokens | None) -> None:
        super().__init__(tokens)
        response = management_pb2.ManagementResponse
        self.routes = {
            f"/{MANAGEMENT}/{name}": partial(
                self.route_slow, answer, message, lambda text: response(msg=text)
            )
            for name, (answer, message) in GrpcManagement(management).calls().items()
        }


class _ServiceServer:
    """The server of one service's port."""

    def __init__(self, service: _Service, parts: EdgeParts, *, is_tls: bool) -> None:
        self._service = service
        port = GrpcPort(
            self._route, parts.limits, parts.metrics, parts.budget, parts.turns, parts.compression
        )
        context = parts.certificates.grpc_context if is_tls and parts.certificates else None
        self._server = PortServer(port, partial(GrpcConnection, port), context)

    async def start(self, listening: socket.socket) -> None:
        """Starts serving on a bound socket, which the server then owns."""
        await self._server.start(listening)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, lets running ones finish within `grace_s`, and then drops them."""
        self._service.leave()
        await self._server.stop(grace_s)

    def _route(self, head: GrpcHead) -> None:
        """Finds the handler of a call."""
        route = self._service.routes.get(head.path)
        if route is not None:
            route(head)
            return
        head.open = Call
        head.most_bytes = SMALL_BODY_BYTES
        words = f"Method not found: {head.path.removeprefix('/')[:200]}"
        head.refusal = head.refusal or UnsupportedError(words)
