"""One prediction of TorchServe's REST API, from request body to response.

In: a head that names a model, and its body. Out: the handler's bytes, status and headers, in chunks
if it sends intermediate answers; or TorchServe's error.
"""

import copy
import logging
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from model_store.archives.handler_calls import BODY, HandlerAnswer, HandlerRequest, Part
from services.errors import ServingError
from services.gateway.admission import InferCall
from services.gateway.edges.http_inference import HttpInference
from services.gateway.edges.torchserve.request_parts import (
    SLICED_BYTES,
    is_form,
    read_parts,
    type_of,
)
from services.gateway.edges.torchserve.rest_exchange import id_field, refusal_body
from services.gateway.inference import INTERNAL_ERROR, Inference
from services.gateway.request_accounting import REQUEST_ID
from services.gateway.sliced_work import Slices, at_once
from services.gateway.torchserve.archive_registry import target
from services.gateway.torchserve.predictions import Predictions, checked_head
from services.gateway.torchserve.refusals import bad_request
from services.queueing.records import InferReply
from services.tracing.context import TRACEPARENT
from services.wire.body import Body
from services.wire.http1.exchange import JSON, Exchange, ExchangeConnection
from services.wire.http1.head import Head
from services.wire.http1.response_stream import ResponseStream

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization
    from services.access.caller import Caller

logger = logging.getLogger("flambeau.torchserve")

MODEL_NAME = "model_name"
"""Parameter, or part of a body, that names the model."""
MAX_NAME_BYTES = 4096
"""Bytes of such a part that are read: no model has a longer name."""
_OURS = frozenset(
    (
        "cache-control", "connection", "content-length", "date", "expires", "keep-alive", "pragma",
        "trailer", "transfer-encoding", "upgrade", "x-request-id",
    )
)  # fmt: skip
"""Headers of responses that the server writes itself."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
LARGE_BYTES = 64 * 1024
"""Size from which the copies of a body and of an answer are charged."""
_BODILESS = (204, 304)
_GOES_ON = b"ts_stream_next: true\r\n"
"""TorchServe's header of an answer in parts."""


class PredictionRoute:
    """Facts of a prediction that its head alone determines; cached with a repeated head.

    Args:
        predictions: the calls of handlers.
        fields: headers of all responses.
        head: head of the request.
        model: name of the model.
        version: TorchServe's version; empty for the default one.
        told: headers that the path adds for the handler.
        given: parts that the query adds.
    """

    __slots__ = (
        "_head", "alias", "content_type", "fields", "given", "given_id", "headers", "is_form",
        "model", "predictions", "traceparent", "version",
    )  # fmt: skip

    def __init__(
        self,
        predictions: Predictions,
        fields: bytes,
        head: Head,
        model: str,
        version: str = "",
        told: Mapping[str, str] | None = None,
        given: tuple[Part, ...] = (),
    ) -> None:
        self.predictions, self.fields, self.given = predictions, fields, given
        self.version = version
        self.model, self.alias = target(model, version)
        self.given_id = head.text(REQUEST_ID) or ""
        self.traceparent = head.text(TRACEPARENT) or ""
        self.content_type = head.text("content-type") or ""
        self.is_form = is_form(self.content_type)
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers
        } | dict(told or {})
        self._head = -1, b""

    def head(self, request: HandlerRequest, size: int) -> bytes:
        """Returns the head of a request with one raw body; those of one size have the same.

        Raises:
            RefusedError: it is too large.
        """
        known, head = self._head
        if known != size:
            head = checked_head(request)
            self._head = size, head
        return head

    def of(self, model: str) -> "PredictionRoute":
        """Returns the route of another model: its default version."""
        other = copy.copy(self)
        other.model, other.alias = target(model)
        return other


class PredictionExchange(HttpInference):
    """One prediction."""

    decompresses = False  # the handler finds the bytes, and the header that names their encoding
    __slots__ = ("_last", "_route")

    def __init__(self, route: PredictionRoute, connection: ExchangeConnection, head: Head) -> None:
        Exchange.__init__(self, connection, head)  # a call less for every request
        self._path = route.predictions.path
        self._inference = None
        self._route = route
        self._last: HandlerAnswer | None = None

    @property
    def authorization(self) -> "CachedAuthorization | None":
        """None: tokens are checked before the body is awaited, and open all models."""
        return None

    def opened(self, received_at: float) -> Inference:
        """Returns the record of this prediction."""
        route = self._route
        return self._path.open(
            self, received_at, route.given_id, route.model, route.alias, route.traceparent
        )

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Starts the prediction."""
        inference = self._inference = self.opened(received_at)
        self._route.predictions.begin(inference, body, self._route.version)

    # Called by `Inference`.

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the parts of the body."""
        route = self._route
        if len(body) > LARGE_BYTES:
            self.reserve(len(body))  # the request to the handler is a copy
        if not route.is_form:
            request = self._request([Part(BODY, type_of(route.content_type), body)])
            return route.predictions.call(
                self._opened(), request, head=route.head(request, len(body))
            )
        parts = read_parts(body, route.content_type)
        if len(body) <= SLICED_BYTES:
            return self._call(at_once(parts))
        return self._call_in_slices(parts)

    def _call_in_slices(self, parts: Slices[list[Part]]) -> Slices[InferCall]:
        return self._call((yield from parts))

    def _opened(self) -> Inference:
        assert self._inference is not None
        return self._inference

    def _request(self, parts: list[Part]) -> HandlerRequest:
        route = self._route
        given = [*route.given, *parts] if route.given else parts
        return HandlerRequest(id=self._opened().request_id, headers=route.headers, parts=given)

    def _call(self, parts: list[Part]) -> InferCall:
        return self._route.predictions.call(self._opened(), self._request(parts))

    def part(self, reply: InferReply) -> None:
        """Sends an intermediate answer as it comes, and keeps the last one until the end."""
        answer = self._route.predictions.answer(reply)
        if reply.is_last:
            self._finish(reply, answer)
            return
        assert reply.window is not None
        if not answer.is_intermediate:
            self._last = answer
            reply.window.take()
            return
        stream = self.stream or self._begun(answer)
        if answer.body:
            stream.write(bytes(answer.body), reply.window.take)
        else:
            reply.window.take()

    def end(self, reply: InferReply) -> None:
        """Sends the last answer."""
        self._finish(reply, self._last or HandlerAnswer())

    def fail(self, error: ServingError) -> None:
        """Answers with TorchServe's error, or breaks off an answer that has begun."""
        if self.stream is not None:
            self.stream.break_off()
            return
        route, inference = self._route, self._inference
        assert inference is not None
        refusal = route.predictions.refused(error, route.model, route.version).refusal
        fields = JSON + id_field(inference.request_id) + route.fields
        route.predictions.responded(refusal.code)
        self.respond(refusal.code, fields, [refusal_body(refusal)])

    def respond_error(self, error: ServingError, fields: bytes = b"") -> None:
        """Answers with TorchServe's error."""
        self.fail(error)

    def _begun(self, answer: HandlerAnswer) -> ResponseStream:
        status = _status(answer)
        if status in _BODILESS:
            status = 200  # an answer in parts has a body
        self._route.predictions.responded(status)
        return self.respond_in_parts(status, _GOES_ON + self._fields(answer))

    def _finish(self, reply: InferReply, answer: HandlerAnswer) -> None:
        inference = self._inference
        assert inference is not None
        body, predictions = answer.body, self._route.predictions
        if self.stream is not None:
            predictions.answered(inference, reply, self._route.version)
            self.stream.end(bytes(body))
            return
        fields, status = self._fields(answer), _status(answer)
        if len(body) > LARGE_BYTES:
            self.release()
            self.reserve(len(body))
        predictions.answered(inference, reply, self._route.version)
        predictions.responded(status)
        self.respond(status, fields, [b"" if status in _BODILESS else body])

    def _fields(self, answer: HandlerAnswer) -> bytes:
        inference = self._inference
        assert inference is not None
        fields = id_field(inference.request_id) + self._route.fields
        if not answer.headers:
            return fields
        return fields + b"".join(
            f"{name}: {value}\r\n".encode("latin-1", "replace")
            for name, value in answer.headers.items()
            if name.lower() not in _OURS and _NAME.fullmatch(name) and _VALUE.fullmatch(value)
        )


class InvocationExchange(PredictionExchange):
    """One prediction whose head names no model.

    It is of the only model that was registered at the start; else a part of it names the model.

    Args:
        has_place: True if the path has a place for the model, which is empty: no part names it.
    """

    __slots__ = ("_has_place", "_parts")

    def __init__(
        self,
        route: PredictionRoute,
        connection: ExchangeConnection,
        head: Head,
        *,
        has_place: bool = False,
    ) -> None:
        PredictionExchange.__init__(self, route, connection, head)
        self._has_place = has_place
        self._parts: list[Part] | None = None

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Finds the model, and starts the prediction."""
        route = self._route
        try:
            name = route.predictions.only_at_start()
            if name or self._has_place:
                self._begin_of(name, body, received_at)
            elif not route.is_form:
                self._begin_of(_model_in(route.given), body, received_at)
            else:
                if len(body) > LARGE_BYTES:
                    self.reserve(len(body))  # the parts are copies
                self._path.admission.work.begin(
                    read_parts(body, route.content_type),
                    lambda parts: self._begin_of_parts(parts, body, received_at),
                    partial(_refuse, self),
                    lambda: self.is_over,
                    len(body),
                )
        except ServingError as error:
            self.refuse(error)

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the parts of the body, unless they are known."""
        parts, self._parts = self._parts, None
        if parts is None:
            return PredictionExchange.decode(self, body, caller)
        return self._call(parts)  # a copy, charged as the parts were, which are freed

    def _begin_of_parts(self, parts: list[Part], body: Body, received_at: float) -> None:
        self._parts = parts
        self._begin_of(_model_in((*self._route.given, *parts)), body, received_at)

    def _begin_of(self, model: str | None, body: Body, received_at: float) -> None:
        if model is None:
            self.refuse(nameless())
            return
        self._route = self._route.of(model)
        PredictionExchange.begin_in_turn(self, body, received_at)


def nameless() -> ServingError:
    """Returns the error of a call without a model."""
    return bad_request(f"Parameter {MODEL_NAME} is required.")


def _model_in(parts: Iterable[Part]) -> str | None:
    """Returns the model that the first part of that name has; None without one."""
    found = (bytes(part.data[:MAX_NAME_BYTES]) for part in parts if part.name == MODEL_NAME)
    data = next(found, None)
    return None if data is None else data.decode("utf-8", "replace")


def _refuse(exchange: InvocationExchange, error: Exception) -> None:
    """Refuses a request whose parts could not be read."""
    if not isinstance(error, ServingError):
        logger.error("a call failed", exc_info=error)
        error = ServingError(INTERNAL_ERROR)
    exchange.refuse(error)


def _status(answer: HandlerAnswer) -> int:
    """Returns the status of an answer: a final one of HTTP."""
    return answer.status if 200 <= answer.status <= 599 else 500
