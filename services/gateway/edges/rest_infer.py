"""Inferences of the REST edge, from request body to response.

In: a head that names a model, and its body. Out: the protocol's JSON or binary response, or
`{"error": ...}`. Nothing is awaited: `inference.py` calls `decode`, `part` and `fail`.
"""

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from flambeau.protocol.signature import Signature
from services.errors import InvalidRequestError, ServingError, UnsupportedError
from services.gateway.admission import InferCall
from services.gateway.edges import rest_codec
from services.gateway.edges.http_inference import HttpInference
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.json_bodies.strict_slices import MIN_LARGE_BYTES
from services.gateway.inference import (
    Inference,
    InferencePath,
    WireProtocol,
    only_one,
    region_use,
)
from services.gateway.request_accounting import REQUEST_ID
from services.gateway.scheduling_parameters import time_for_work, work_deadline
from services.gateway.sliced_work import Slices
from services.queueing.records import InferReply
from services.tracing.context import TRACEPARENT
from services.wire.body import Body
from services.wire.compression import MIN_COMPRESSED_BYTES, accepted_encoding
from services.wire.http1.exchange import JSON, Exchange, ExchangeConnection
from services.wire.http1.head import Head

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization
    from services.access.caller import Caller

REST = WireProtocol("rest", "200", lambda error: str(error.http_status))

TIMEOUT_HEADER = "x-request-timeout-ms"
"""The caller's own timeout, from the last byte of the request. HTTP has no standard header for it;
the unit is in the name because the customary headers differ only in that."""

WAY_BACK_S = 0.002
_TIMEOUT = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?")
_HEADER_LENGTH = rest_codec.HEADER_LENGTH.encode()
_OCTETS = b"content-type: application/octet-stream\r\n"


class RestInferRoute:
    """Facts of an inference that its head alone determines; cached with a repeated head."""

    __slots__ = (
        "authorization", "encoding", "fault", "given_id", "header_length", "is_plain", "model",
        "path", "timeout_s", "traceparent", "version",
    )  # fmt: skip

    def __init__(
        self,
        path: InferencePath,
        head: Head,
        model: str,
        version: str,
        authorization: "CachedAuthorization | None" = None,
    ) -> None:
        self.path = path
        self.authorization = authorization
        self.model = model
        self.version = version
        self.given_id = head.text(REQUEST_ID) or ""
        self.traceparent = head.text(TRACEPARENT) or ""
        self.header_length = head.text(rest_codec.HEADER_LENGTH)
        self.encoding = accepted_encoding(head.text("accept-encoding") or "")
        self.timeout_s: float | None = None
        self.fault: ServingError | None = None
        """The head's error, sent once the body arrived: the connection stays open."""
        try:
            self.timeout_s = _timeout_s(head.text(TIMEOUT_HEADER))
        except InvalidRequestError as error:
            self.fault = error
        self.is_plain = self.header_length is None and self.fault is None
        """True if the head describes a plain JSON body."""

    def signature(self) -> Signature:
        """Returns the signature of the model.

        Raises:
            ServingError: the head has a fault, or the model is not ready.
        """
        if self.fault is not None:
            raise self.fault
        return self.path.admission.directory.resolve(self.model, self.version)[1]


class InferExchange(HttpInference):
    """One inference."""

    __slots__ = ("_request", "_route")

    def __init__(self, route: RestInferRoute, connection: ExchangeConnection, head: Head) -> None:
        Exchange.__init__(self, connection, head)  # a call less for every request
        self._path = route.path
        self._inference = None
        self._route = route
        self._request: RestRequest | None = None

    @property
    def authorization(self) -> "CachedAuthorization | None":
        """Authorization of the caller."""
        return self._route.authorization

    def body_limit(self, max_bytes: int) -> int:
        """Returns the port's limit for callers that may infer."""
        route = self._route
        if route.authorization is not None:
            route.authorization.caller(route.model)
        return max_bytes

    def opened(self, received_at: float) -> Inference:
        """Returns the record of this inference, by the facts of its head."""
        route = self._route
        return route.path.open(
            self, received_at, route.given_id, route.model, route.version, route.traceparent
        )

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Starts the inference; as its base, without calls between."""
        route = self._route
        inference = self._inference = route.path.open(
            self, received_at, route.given_id, route.model, route.version, route.traceparent
        )
        if route.timeout_s is not None:
            inference.ends_at = received_at + route.timeout_s
        inference.begin(body, route.authorization)

    # Called by `Inference`.

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the JSON, and the binary tensors behind it."""
        route = self._route
        if route.is_plain and len(body) < MIN_LARGE_BYTES:
            try:
                return self._call(rest_codec.decode_json(body), caller)
            except UnsupportedError:
                if route.path.regions is None:
                    raise
        if route.fault is not None:
            raise route.fault
        signature = None
        admission = route.path.admission
        if route.header_length == "0":
            signature = admission.directory.resolve(route.model, route.version)[1]
        check = partial(admission.check_inputs, route.model, route.version, caller)
        use = region_use(route.path, caller)
        decoded = rest_codec.decode(body, route.header_length, signature, check, self.reserve, use)
        if isinstance(decoded, RestRequest):
            return self._call(decoded, caller)
        return self._call_in_slices(decoded, caller)

    def _call_in_slices(
        self, slices: Slices[RestRequest], caller: "Caller | None"
    ) -> Slices[InferCall]:
        return self._call((yield from slices), caller)

    def _call(self, request: RestRequest, caller: "Caller | None") -> InferCall:
        inference = self._inference
        assert inference is not None
        self._request = request
        if request.id:
            inference.rename(request.id)
        if request.classes:
            inference.classify(request.classes)
        deadline = math.inf
        timeout_s = self._route.timeout_s
        if timeout_s is not None or request.timeout_us:
            received_at = inference.received_at
            deadline = work_deadline(received_at, request.timeout_us, math.inf, WAY_BACK_S)
            if timeout_s is not None:
                deadline = min(deadline, received_at + timeout_s)
        return InferCall(
            request_id=inference.request_id,
            model=inference.model,
            version=inference.version,
            inputs=request.inputs,
            outputs=request.outputs,
            deadline=deadline,
            priority=request.priority,
            preference=request.preference,
            sequence=request.sequence,
            trace=inference.trace,
            caller=caller,
        )

    def part(self, reply: InferReply) -> None:
        """Sends the response in the form that the request and its head ask for."""
        request = self._request
        assert request is not None
        if not reply.is_last:
            only_one(reply)
        if (
            request.is_simple
            and len(reply.outputs) == 1
            and not self._route.encoding
            and not reply.artifact
            and (text := rest_codec.encode_one(reply)) is not None
        ):
            self._succeed(reply, JSON, [text])
            return
        inference = self._inference
        assert inference is not None
        encoded = rest_codec.encode(reply, request, self.reserve, inference.classes)
        if isinstance(encoded, rest_codec.RestBody):
            self._send(reply, encoded)
        else:
            self._request = None
            inference.write(encoded, reply, partial(self._send, reply))

    def _send(self, reply: InferReply, body: rest_codec.RestBody) -> None:
        encoding = self._route.encoding
        fields = JSON
        if body.json_length is not None:
            fields = b"%b%b: %d\r\n" % (_OCTETS, _HEADER_LENGTH, body.json_length)
        if encoding and body.length >= MIN_COMPRESSED_BYTES:
            fields += b"content-encoding: %b\r\n" % encoding.encode()
            self.compress(body.parts, encoding, lambda parts: self._succeed(reply, fields, parts))
        else:
            self._succeed(reply, fields, body.parts)

    def _succeed(
        self, reply: InferReply, fields: bytes, parts: Sequence[bytes | memoryview]
    ) -> None:
        inference = self._inference
        assert inference is not None
        inference.answered(reply)
        # Ids are printable ASCII: `Inference` replaces any other.
        fields = b"%bx-request-id: %b\r\n" % (fields, inference.request_id.encode())
        self.respond(200, fields, parts)

    def end(self, reply: InferReply) -> None:
        """Refuses an answer without outputs."""
        only_one(reply)

    def key(self, source: str, name: str) -> str:
        """Returns the value of a header or a parameter; see `ReplySink`."""
        if source == "header":
            return super().key(source, name)
        return key_text(self._request.parameters.get(name)) if self._request is not None else ""

    def fail(self, error: ServingError) -> None:
        """Answers `{"error": ...}`, with the request's id as a header."""
        inference = self._inference
        assert inference is not None
        self.respond_error(error, b"x-request-id: %b\r\n" % inference.request_id.encode())


def key_text(value: object) -> str:
    """Returns the text of a parameter that a version is drawn by; empty for any other value."""
    return str(value) if isinstance(value, str | int | float) and value != "" else ""


def _timeout_s(value: str | None) -> float | None:
    if value is None:
        return None
    if not _TIMEOUT.fullmatch(value) or not float(value):
        raise InvalidRequestError(
            f"the header {TIMEOUT_HEADER} must be a number of milliseconds above 0, "
            f"and is '{value[:40]}'"
        )
    return time_for_work(float(value) / 1000, WAY_BACK_S)
