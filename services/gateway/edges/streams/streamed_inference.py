"""One request of a ModelStreamInfer call, from its message to its last answer.

In: the message, in its turn of the event loop; replies, from `inference.py`. Out: parts of
`ModelStreamInferResponse`s, to the stream, which sends each answer in its turn.

Source: Triton's `grpc_service.proto`; every answer says in the parameter `triton_final_response`
whether it is the last one.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError, ServingError
from services.gateway.admission import InferCall
from services.gateway.edges import grpc_codec
from services.gateway.edges.grpc_infer import GrpcInferRoute, GrpcRequest
from services.gateway.edges.grpc_large_answer import field_head
from services.gateway.edges.grpc_raw import read_infer_request
from services.gateway.edges.raw_parts import Part
from services.gateway.edges.shared_memory.grpc_regions import InRegions, message_of
from services.gateway.edges.streams.sliced_replies import Encoded, SlicedReplies
from services.gateway.inference import Inference
from services.gateway.sliced_work import SlicedWork, Slices
from services.queueing.records import InferReply
from services.wire.body import Body
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_head import GrpcHead

if TYPE_CHECKING:
    from services.access.caller import Caller

FINAL = "triton_final_response"
WANTS_END = "triton_enable_empty_final_response"
STATUS = "grpc_status"
"""Parameter of an error: the name of the status that a unary call would have."""


def _parameter(*, is_final: bool) -> bytes:
    """Returns the parameter as bytes: behind a serialised response it is one more of its fields."""
    response = pb.ModelInferResponse()
    response.parameters[FINAL].bool_param = is_final
    return response.SerializeToString()


_IS_FINAL, _IS_NOT_FINAL = _parameter(is_final=True), _parameter(is_final=False)
_INFER_RESPONSE = b"\x12"
"""Tag of `ModelStreamInferResponse.infer_response`."""


class AnswerStream(Protocol):
    """The interface of the stream that its requests use.

    Attributes:
        connection: connection of the call.
        decoding: its requests that are decoded in slices, in their order.
        head: of the call.
        is_strict: True if the first error ends it.
        opened: `time.monotonic()` second in which it began.
        route: facts of its head.
    """

    connection: CallConnection
    decoding: "deque[StreamedInference]"
    head: GrpcHead
    is_strict: bool
    opened: float
    route: GrpcInferRoute

    def reserve(self, size: int) -> None:
        """Reserves memory, or gives back some if negative."""

    def give(self, size: int) -> None:
        """Releases bytes that were charged for a request."""

    def is_next(self, request: Any) -> bool:
        """Returns True if no answer has to be sent before that of an ordered request."""

    def answer(self, request: Any, parts: Sequence[Part]) -> None:
        """Sends the last answer of a request, in its turn; nothing if it has no parts."""

    def advance(self) -> None:
        """Sends the answers whose turn it is."""

    def send_parts(self, parts: Sequence[Part], taken: Callable[[], None]) -> None:
        """Sends an answer that is not the last; `taken` as in `StreamCall`."""


class StreamedInference(SlicedReplies, GrpcRequest):
    """One request.

    Args:
        stream: its call.
        size: bytes of its message, which are charged to the call.

    Attributes:
        size: as given.
        error: that ends a strict stream.
        is_ordered: True if its answer waits for those of requests before it.
        is_over: True once it has its outcome.
        ready: its answer, while it waits for those before it.
        refusal: error of a request that a limit refuses before it is read.
    """

    __slots__ = (
        "_behind", "_held_bytes", "_inference", "_opened", "_raw", "_request", "_reserved_bytes",
        "_route", "_stream",
        "error", "is_ordered", "is_over", "ready", "refusal", "size",
    )  # fmt: skip

    def __init__(self, stream: AnswerStream, size: int) -> None:
        self._stream = stream
        self._route: GrpcInferRoute = stream.route
        self._opened = stream.opened
        self._inference: Inference | None = None
        self._request: pb.ModelInferRequest | InRegions | None = None
        self._raw: Sequence[grpc_codec.Raw] | None = None
        self._behind: deque[InferReply] | None = None
        self._reserved_bytes = 0
        self._held_bytes = self.size = size
        self.is_ordered = True
        self.is_over = False
        self.error: ServingError | None = None
        self.ready: Sequence[Part] | None = None
        self.refusal: ServingError | None = None

    @property
    def has_begun(self) -> bool:
        """True once its message was parsed."""
        return self._inference is not None

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Parses the message, which names the model, and starts the inference."""
        route = self._route
        try:
            request, self._raw = read_infer_request(body)
        except InvalidRequestError as error:
            self.refuse(error)
            return
        self._request = request
        inference = self._inference = route.path.open(
            self, received_at, request.id or route.given_id, request.model_name,
            request.model_version, route.traceparent,
        )  # fmt: skip
        if self.refusal is not None:
            inference.fail(self.refusal)
            return
        if route.path.admission.directory.is_decoupled(request.model_name, request.model_version):
            self._leave_order()
        inference.begin(body, route.authorization)

    def refuse(self, error: ServingError) -> None:
        """Refuses a request that was not begun."""
        route = self._route
        self._inference = route.path.open(self, time.monotonic(), route.given_id)
        self._inference.fail(error)

    def abandon(self, code: str, error: ServingError) -> None:
        """Cancels a request that has begun: its caller has disconnected."""
        self.ready = None
        assert self._inference is not None
        self._inference.cancel(code, error)

    def reserve(self, size: int) -> None:
        """Reserves memory until the answer is sent; gives some back if negative.

        Raises:
            BufferFullError: there is no room.
            ServingError: the call is over.
        """
        self._stream.reserve(size)
        self._held_bytes += size

    def release(self) -> None:
        """Gives back the bytes charged for the request."""
        held, self._held_bytes = self._held_bytes, 0
        self._stream.give(held)

    # Called by `Inference`, and by `SlicedReplies`.

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the message behind those before it: steps of a sequence keep their order."""
        decoding = self._stream.decoding
        while decoding and decoding[0].is_over:
            decoding.popleft()
        if not decoding:
            decoded = GrpcRequest.decode(self, body, caller)
            if isinstance(decoded, InferCall):
                return decoded
        else:
            request: pb.ModelInferRequest = self._request  # type: ignore[assignment]  # it is new
            raw, self._raw = self._raw, None
            decoded = self._call_in_slices(request, raw, caller)
        decoding.append(self)
        return self._in_turn(decoded)

    def _in_turn(self, slices: Slices[InferCall]) -> Slices[InferCall]:
        decoding = self._stream.decoding
        while decoding and decoding[0] is not self:
            if decoding[0].is_over:
                decoding.popleft()
            else:
                yield
        try:
            return (yield from slices)
        finally:
            if decoding and decoding[0] is self:
                decoding.popleft()

    def metadata_entry(self, name: str) -> str:
        """Returns an entry of the call's metadata; empty for none."""
        return self._stream.head.text(name)

    @property
    def work(self) -> SlicedWork:
        """Runs the slices of large answers."""
        return self._route.path.admission.work

    def charge(self, size: int) -> None:
        """Reserves memory for an answer, or gives back some if negative."""
        self.reserve(size)

    def encode(self, reply: InferReply, reserve: Callable[[int], None]) -> Encoded:
        """Encodes an answer.

        Raises:
            UnreadAnswersError: too many bytes wait for the caller.
        """
        if not reply.is_last and self.is_ordered:
            self._leave_order()
        request, connection = self._request, self._stream.connection
        assert request is not None
        if connection.sending.unsent_bytes > connection.share_bytes:
            raise connection.unread()
        inference = self._inference
        assert inference is not None
        encoded = self._route.encode(reply, request, reserve, inference.classes)
        return (encoded,) if isinstance(encoded, bytes) else encoded

    def deliver(self, reply: InferReply, parts: Sequence[Part]) -> None:
        """Sends an answer, or has it wait for those before it."""
        if not reply.is_last:
            assert reply.window is not None
            self._stream.send_parts(_response(parts, _IS_NOT_FINAL), reply.window.take)
            return
        if self.is_ordered and not self._stream.is_next(self):
            self.reserve(sum(map(len, parts)))
        assert self._inference is not None
        self._inference.answered(reply)
        self.is_over = True
        self._stream.answer(self, _response(parts, _IS_FINAL))

    def deliver_end(self, reply: InferReply) -> None:
        """Ends the answers, with an empty one if the request asks for it."""
        inference = self._inference
        assert inference is not None
        assert self._request is not None
        request = message_of(self._request)
        inference.answered(reply)
        self.is_over = True
        ends = request.parameters
        if WANTS_END not in ends or not ends[WANTS_END].bool_param:
            self._stream.answer(self, ())
            return
        empty = pb.ModelInferResponse(
            model_name=reply.lane.model, model_version=str(reply.lane.version), id=request.id
        )
        self._stream.answer(self, _response((empty.SerializeToString(),), _IS_FINAL))

    def fail(self, error: ServingError) -> None:
        """Sends an error in place of an answer; it ends a strict stream."""
        self.is_over = True
        if self._stream.is_strict:
            self.error = error
            self._stream.answer(self, ())
            return
        named = pb.ModelInferResponse()
        if self._request is not None:
            request = message_of(self._request)
            named.id, named.model_name = request.id, request.model_name
            named.model_version = request.model_version
        named.parameters[FINAL].bool_param = True
        named.parameters[STATUS].string_param = error.grpc_code
        message = pb.ModelStreamInferResponse(error_message=str(error), infer_response=named)
        self._stream.answer(self, (message.SerializeToString(),))

    def _leave_order(self) -> None:
        self.is_ordered = False
        self._stream.advance()


def _response(parts: Sequence[Part], ending: bytes) -> Sequence[Part]:
    """Returns a `ModelStreamInferResponse` around the parts of a `ModelInferResponse`."""
    size = sum(map(len, parts)) + len(ending)
    return (field_head(_INFER_RESPONSE, size), *parts, ending)
