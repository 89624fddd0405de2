"""gRPC's ModelStreamInfer: a stream of requests in, any number of answers to each out.

In: request messages. Out: `ModelStreamInferResponse`s. Each request is one `Inference`
(`streamed_inference.py`), with an outcome of its own.

Rules, which are Triton's:
- answers of models with one answer keep the order of their requests, errors included; those of
  decoupled models are sent as they come, each request's own in order;
- an error is a message with the id of its request, and the stream goes on; with the metadata
  `triton_grpc_error: true` the first error, in its turn, is the status of the call;
- once the caller has sent its last message, the call ends behind its last answer;
- requests beyond `MAX_IN_FLIGHT`, `IN_FLIGHT_BYTES` or unread answers wait with the caller
  (`services/wire/http2/stream_call.py`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from services.errors import ServingError, ShuttingDownError, TooManyInFlightError
from services.gateway.edges.grpc_infer import GrpcInferRoute, cancellation
from services.gateway.edges.raw_parts import Part
from services.gateway.edges.streams.streamed_inference import StreamedInference
from services.wire.body import Body
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.stream_call import StreamCall

MAX_STREAMS = 4096
"""Streams of all connections: each may last for ever."""
MAX_IN_FLIGHT = 128
"""Requests of one stream in flight, or answered and not read: they fill batches, and a stream of
more would crowd out the others of its server."""
IN_FLIGHT_BYTES = 16 * 2**20
"""Bytes of requests in flight, or of unread answers of its connection, from which a stream takes no
further request."""
TAKE_US = 5
"""Time to take a message, beside that of beginning its request."""
DROPPED_A_TURN = 32
"""Requests of lost streams that are cancelled in one turn: some 10 µs each."""
STRICT = "triton_grpc_error"


class GrpcStreams:
    """The open streams of one port."""

    def __init__(self) -> None:
        self._open: set[InferenceStream] = set()
        self._dropped: deque[tuple[StreamedInference, str, ServingError]] = deque()
        self._drop_asked = False

    def open(
        self, route: GrpcInferRoute, connection: CallConnection, head: GrpcHead, stream: int
    ) -> "InferenceStream":
        """Opens a call; one too many is refused in the next turn."""
        call = InferenceStream(self, route, connection, head, stream)
        if len(self._open) >= MAX_STREAMS:
            error = TooManyInFlightError(
                f"{MAX_STREAMS} calls of ModelStreamInfer are open here, the limit; end some, and "
                "send more requests on each"
            )
            asyncio.get_running_loop().call_soon(connection.refuse, call, error)
        else:
            self._open.add(call)
        return call

    def leave(self) -> None:
        """Ends all streams: the server shuts down, and has answered their requests."""
        error = ShuttingDownError("this server is shutting down; open the stream at another")
        for call in tuple(self._open):
            call.fail(error)

    def forget(self, call: "InferenceStream") -> None:
        """Removes a stream that is over."""
        self._open.discard(call)

    def drop(self, requests: Iterable[StreamedInference], code: str, error: ServingError) -> None:
        """Cancels requests of a stream that is over, some in each turn of the loop."""
        for request in requests:
            request.is_over = True  # those that wait for their turn never begin
            if request.has_begun:
                self._dropped.append((request, code, error))
        if not self._drop_asked:
            self._drop_some()

    def _drop_some(self) -> None:
        for _ in range(min(DROPPED_A_TURN, len(self._dropped))):
            request, code, error = self._dropped.popleft()
            request.abandon(code, error)
        self._drop_asked = bool(self._dropped)
        if self._drop_asked:
            asyncio.get_running_loop().call_soon(self._drop_some)


class InferenceStream(StreamCall):
    """One stream.

    Args:
        streams: the others of its port.
        route: facts of its head.

    Attributes:
        decoding: its requests that are decoded in slices, in their order.
        opened: `time.monotonic()` second in which it began.
        is_strict: True if the first error ends it.
        route: as given.
    """

    __slots__ = (
        "_bytes", "_has_all", "_in_flight", "_in_order", "_streams", "decoding", "is_strict",
        "opened", "route",
    )  # fmt: skip

    def __init__(
        self,
        streams: GrpcStreams,
        route: GrpcInferRoute,
        connection: CallConnection,
        head: GrpcHead,
        stream: int,
    ) -> None:
        super().__init__(connection, head, stream)
        self.route = route
        self.opened = time.monotonic()
        self.is_strict = head.text(STRICT) == "true"
        self._streams = streams
        # Requests whose last answer is not sent, and those whose answers keep their order.
        self._in_flight: dict[StreamedInference, None] = {}
        self._in_order: deque[StreamedInference] = deque()
        self.decoding: deque[StreamedInference] = deque()
        self._bytes = 0
        self._has_all = False

    # Called by the connection.

    def check_caller(self) -> None:
        """Checks the caller again: its key may have expired since the head was first read."""
        authorization = self.route.authorization
        if authorization is not None:
            authorization.check()

    def take(self, message: Body) -> None:
        """Queues a request for its turn of the event loop."""
        self.connection.count_work(TAKE_US)
        size = len(message)
        request = StreamedInference(self, size)
        self._in_flight[request] = None
        self._in_order.append(request)
        self._bytes += size
        budget = self.connection.port.budget
        self.held_bytes += size
        budget.held_bytes += size
        if budget.held_bytes > budget.small_limit_bytes and not budget.has_room_for(size):
            request.refusal = budget.full()
        if self.is_over:
            return  # to make room
        self.route.path.admission.turns.begin(request, message, self.connection)
        if self._is_full() and not self.is_over:
            self.hold()

    def _is_full(self) -> bool:
        return (
            len(self._in_flight) >= MAX_IN_FLIGHT
            or self._bytes >= IN_FLIGHT_BYTES
            or self.connection.sending.unsent_bytes >= IN_FLIGHT_BYTES
        )

    def end_input(self) -> None:
        """Ends the call once all requests are answered."""
        self._has_all = True
        if not self._in_flight:
            self.finish()

    def finish(self) -> None:
        """Ends the call with the status OK."""
        super().finish()
        self._streams.forget(self)

    def fail(self, error: ServingError, *metadata: tuple[str, str]) -> None:
        """Ends the call with an error, and cancels its requests."""
        if not self.is_over:
            super().fail(error, *metadata)
            self._drop(error.grpc_code, error)

    def abandon(self) -> None:
        """Cancels the requests: the caller has disconnected, or its deadline has passed."""
        self._drop(*cancellation(self.opened, self.route.timeout_s))

    def _drop(self, code: str, error: ServingError) -> None:
        requests, self._in_flight = self._in_flight, {}
        self._in_order.clear()
        self._streams.forget(self)
        self._streams.drop(requests, code, error)

    # Called by its requests.

    def is_next(self, request: StreamedInference) -> bool:
        """Returns True if no answer has to be sent before that of an ordered request."""
        order = self._in_order
        return bool(order) and order[0] is request

    def answer(self, request: StreamedInference, parts: Sequence[Part]) -> None:
        """Sends the last answer of a request, in its turn; nothing if it has no parts."""
        if self.is_over:
            return
        if not request.is_ordered:
            self._send_last(request, parts)
            return
        request.ready = parts
        self.advance()

    def advance(self) -> None:
        """Sends the answers whose turn it is."""
        order = self._in_order
        while order and ((first := order[0]).ready is not None or not first.is_ordered):
            order.popleft()
            if first.is_ordered:
                assert first.ready is not None
                self._send_last(first, first.ready)
                first.ready = None

    def _send_last(self, request: StreamedInference, parts: Sequence[Part]) -> None:
        if request.error is not None:
            self.fail(request.error)
            return
        request.release()  # what is not sent is charged to the connection
        sent = partial(self._sent, request)
        if parts:
            self.send_parts(parts, sent)
        else:
            self.when_sent(sent)

    def _sent(self, request: StreamedInference) -> None:
        """Handles the end of a request: nothing of its answers waits for the caller."""
        self._in_flight.pop(request, None)
        self._bytes -= request.size
        if self._has_all and not self._in_flight:
            self.finish()
        elif self.is_full and not self._is_full():
            self.go_on()

    def give(self, size: int) -> None:
        """Releases bytes that were charged for a request."""
        if not self.is_over:
            self.connection.port.budget.give(size)
            self.held_bytes -= size
