"""Inferences of the gRPC edge, from request message to response.

In: a head, and the message behind it. Out: the response, or a gRPC status with the error's
message; the trailing metadata of both carry `x-request-id`. Nothing awaits: `inference.py` calls
`decode`, `part` and `fail`.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from protos import open_inference_pb2 as pb
from services.access.credential import secret_of
from services.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelReturningError,
    ServingError,
    UnsupportedError,
)
from services.gateway.admission import InferCall, InputTensor
from services.gateway.edges import grpc_codec
from services.gateway.edges.binary_texts import MAX_TEXTS_AT_ONCE_BYTES
from services.gateway.edges.grpc_raw import read_infer_request
from services.gateway.edges.raw_parts import Part
from services.gateway.edges.shared_memory.grpc_regions import InRegions, message_of, take_regions
from services.gateway.inference import (
    Inference,
    InferencePath,
    WireProtocol,
    only_one,
    region_use,
)
from services.gateway.request_accounting import REQUEST_ID
from services.gateway.scheduling_parameters import work_deadline
from services.gateway.sliced_work import Slices
from services.queueing.records import InferReply
from services.tracing.context import TRACEPARENT
from services.wire.body import Body
from services.wire.http2 import headers as http2_headers
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_call import UnaryCall
from services.wire.http2.grpc_head import GrpcHead

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization
    from services.access.caller import Caller

GRPC = WireProtocol("grpc", "OK", lambda error: error.grpc_code)

TIMEOUT_ROUNDING = 0.01
"""A caller rounds the timeout it sends up to two digits, so its own expires earlier than ours: by
this fraction, and by the network delay. A cancellation that close to the end is a timeout."""
NETWORK_DELAY_S = 0.005
WAY_BACK_S = 0.003
"""With 2 ms, one response in a hundred came too late under overload; the client needs longer over
gRPC than over REST."""


class GrpcInferRoute:
    """Facts of an inference that its head alone determines; cached with a repeated head."""

    __slots__ = ("authorization", "encode", "given_id", "path", "timeout_s", "traceparent")

    def __init__(
        self,
        path: InferencePath,
        head: GrpcHead,
        authorization: "CachedAuthorization | None" = None,
        encode: grpc_codec.Encode = grpc_codec.encode_serialized,
    ) -> None:
        self.path = path
        self.authorization = authorization
        self.encode = encode
        self.given_id = head.text(REQUEST_ID)
        self.traceparent = head.text(TRACEPARENT) if path.accounting.tracer else ""
        self.timeout_s = head.timeout_s


class InferenceRoute(Protocol):
    """Facts of a call's head that all inferences over gRPC need."""

    given_id: str
    path: InferencePath
    timeout_s: float | None
    traceparent: str


class GrpcInference:
    """A call that is one inference at a time, and may end before its message names a model.

    Its subclasses are calls, and have the slots; `_opened` is the second in which the call began.
    """

    __slots__ = ()
    _inference: Inference | None
    _opened: float
    _route: InferenceRoute

    def refuse(self, error: ServingError) -> None:
        """Refuses a request and counts it, even if it never became one."""
        (self._inference or self._open()).fail(error)

    def abandon(self) -> None:
        """Cancels the inference: its caller has disconnected, or its deadline has passed."""
        inference = self._inference or self._open()
        inference.cancel(*cancellation(self._opened, self._route.timeout_s))

    def _open(self) -> Inference:
        """Opens an inference for a message that could not be read."""
        route = self._route
        self._inference = route.path.open(  # type: ignore[misc]  # the subclasses have the slot
            self,  # type: ignore[arg-type]  # with the call that it is a part of
            time.monotonic(), route.given_id, "", "", route.traceparent,
        )  # fmt: skip
        return self._inference


class GrpcRequest:
    """A request message that is one inference: of a unary call, or one of many on a stream.

    Its subclasses have the slots; `_opened` is the second in which their call began.
    """

    __slots__ = ()
    _inference: Inference | None
    _opened: float
    _raw: Sequence[grpc_codec.Raw] | None
    _request: pb.ModelInferRequest | InRegions | None
    _route: GrpcInferRoute

    def reserve(self, size: int) -> None:
        """Reserves memory for a large request or response, or gives back some if negative."""
        raise NotImplementedError

    def metadata_entry(self, name: str) -> str:
        """Returns an entry of the call's metadata; empty for none."""
        raise NotImplementedError

    def key(self, source: str, name: str) -> str:
        """Returns the value of a metadata entry or a parameter; see `ReplySink`."""
        if source == "header":
            return self.metadata_entry(name)
        assert self._request is not None
        return grpc_codec.parameter_text(message_of(self._request), name)

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the message's tensors into arrays."""
        request: pb.ModelInferRequest = self._request  # type: ignore[assignment]  # it is new
        raw = self._raw
        # It views the body. The subclasses have the slot.
        self._raw = None  # type: ignore[misc]
        if len(body) > MAX_TEXTS_AT_ONCE_BYTES and grpc_codec.has_long_texts(request, raw):
            return self._call_in_slices(request, raw, caller)
        try:
            return self._call(request, grpc_codec.decode_inputs(request, raw), caller)
        except ModelReturningError:  # it is decoded again once the model is back
            self._raw = raw  # type: ignore[misc]
            raise
        except (InvalidRequestError, UnsupportedError):  # without raw data, or a known parameter
            if self._route.path.regions is None:
                raise
        return self._call_in_slices(request, raw, caller)

    def _call_in_slices(
        self,
        request: pb.ModelInferRequest,
        raw: Sequence[grpc_codec.Raw] | None,
        caller: "Caller | None",
    ) -> Slices[InferCall]:
        path = self._route.path
        regions = region_use(path, caller)
        if regions is None:
            inputs = yield from grpc_codec.decode_in_slices(request, raw, self.reserve)
            return self._call(request, inputs, caller)
        check = partial(
            path.admission.check_inputs, request.model_name, request.model_version, caller
        )
        try:
            raw = yield from take_regions(request, raw, regions, check, self.reserve)
            if regions.outputs:
                self._request = InRegions(request, regions)  # type: ignore[misc]
            inputs = yield from grpc_codec.decode_in_slices(request, raw, self.reserve)
        finally:
            regions.leave()
        return self._call(request, inputs, caller)

    def _call(
        self, request: pb.ModelInferRequest, inputs: list[InputTensor], caller: "Caller | None"
    ) -> InferCall:
        inference = self._inference
        assert inference is not None
        timeout_us, priority, preference, sequence = grpc_codec.asked_parameters(request)
        outputs, classes = grpc_codec.asked_outputs(request)
        if classes:
            inference.classify(classes)
        allowed_s = self._route.timeout_s
        deadline = math.inf
        if timeout_us or allowed_s is not None:
            ends_at = math.inf if allowed_s is None else self._opened + allowed_s
            deadline = work_deadline(inference.received_at, timeout_us, ends_at, WAY_BACK_S)
        return InferCall(
            request_id=inference.request_id,
            model=inference.model,
            version=inference.version,
            inputs=inputs,
            outputs=outputs,
            deadline=deadline,
            priority=priority,
            preference=preference,
            sequence=sequence,
            trace=inference.trace,
            caller=caller,
        )


class InferenceCall(GrpcInference, UnaryCall, GrpcRequest):
    """One inference."""

    __slots__ = ("_inference", "_opened", "_raw", "_request", "_route")
    _route: GrpcInferRoute
    counts_refusals = True

    def __init__(
        self, route: GrpcInferRoute, connection: CallConnection, head: GrpcHead, stream: int
    ) -> None:
        UnaryCall.__init__(self, connection, head, stream)
        self._route = route
        self._opened = time.monotonic()
        self._inference: Inference | None = None
        self._request: pb.ModelInferRequest | InRegions | None = None
        self._raw: Sequence[grpc_codec.Raw] | None = None

    def check_caller(self) -> None:
        """Checks the caller again: its key may have expired since the head was first read."""
        authorization = self._route.authorization
        if authorization is not None:
            authorization.check()

    def begin(self, message: Body) -> None:
        """Queues the work for its turn of the event loop."""
        self._route.path.admission.turns.begin(self, message, self.connection)

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
        inference.begin(body, route.authorization)

    # Called by `Inference`.

    def metadata_entry(self, name: str) -> str:
        """Returns an entry of the call's metadata; empty for none."""
        return self.head.text(name)

    def part(self, reply: InferReply) -> None:
        """Sends the response message."""
        request, inference = self._request, self._inference
        assert request is not None
        if not reply.is_last:
            only_one(reply)
        assert inference is not None
        if self.connection.sending.unsent_bytes > self.connection.share_bytes:
            raise self.connection.unread()
        message = self._route.encode(reply, request, self.reserve, inference.classes)
        if isinstance(message, bytes):
            inference.answered(reply)
            self.reply(message, http2_headers.write([(REQUEST_ID, inference.request_id)]))
        else:
            self._request = None
            inference.write(message, reply, partial(self._send_parts, reply))

    def _send_parts(self, reply: InferReply, parts: list[Part]) -> None:
        """Sends a large response, which was serialised in slices."""
        inference = self._inference
        assert inference is not None
        inference.answered(reply)
        self.reply_in_parts(parts, http2_headers.write([(REQUEST_ID, inference.request_id)]))

    def end(self, reply: InferReply) -> None:
        """Refuses an answer without outputs."""
        only_one(reply)

    def fail(self, error: ServingError, *metadata: tuple[str, str]) -> None:
        """Ends the call with an error's status and message, and the request's id."""
        inference = self._inference
        assert inference is not None
        super().fail(error, (REQUEST_ID, inference.request_id), *metadata)


def cancellation(opened: float, allowed_s: float | None) -> tuple[str, ServingError]:
    """Returns the code and the error of a call that its caller has cancelled.

    Args:
        opened: `time.monotonic()` second in which it began.
        allowed_s: its timeout; None for none.
    """
    if allowed_s is not None:
        late_s = allowed_s * (1 - TIMEOUT_ROUNDING) - NETWORK_DELAY_S
        if time.monotonic() >= opened + late_s:
            late = "the deadline passed before the response"
            return "DEADLINE_EXCEEDED", DeadlineExceededError(late)
    return "CANCELLED", ServingError("the caller cancelled the call")


def secret_in(head: GrpcHead) -> str:
    """Returns the credential in a call's metadata; empty if there is no readable one.

    Raises:
        InvalidRequestError: there are two.
    """
    return secret_of(head.text("authorization"), head.text("x-api-key"))
