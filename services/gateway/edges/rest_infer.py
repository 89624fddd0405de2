"""The hot path of the REST edge: one inference, from its whole body to its whole answer.

In: a head that names a model, and its body. Out: the protocol's JSON or binary answer, or
`{"error": ...}`. Nothing is awaited: admission calls back, and so does what reads and writes large
bodies in slices.
"""

import logging
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from services.errors import InvalidRequestError, ServingError
from services.gateway.admission import Admission, InferCall
from services.gateway.edges import rest_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.json_bodies.strict_slices import MIN_LARGE_BYTES
from services.gateway.request_accounting import REQUEST_ID, Record, RequestAccounting
from services.gateway.scheduling_parameters import time_for_work
from services.gateway.sliced_work import Slices
from services.gateway.wire.body import Body
from services.gateway.wire.compression import MIN_COMPRESSED_BYTES, accepted_encoding
from services.gateway.wire.http1.exchange import JSON, Exchange
from services.gateway.wire.http1.head import Head
from services.queueing.memory_queue import Done, Entry, Outcome
from services.queueing.records import InferReply, Lane
from services.tracing.context import TRACEPARENT

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization
    from services.access.caller import Caller
    from services.gateway.wire.http1.connection import HttpConnection

logger = logging.getLogger("flambeau.http")

TIMEOUT_HEADER = "x-request-timeout-ms"
"""The caller's own limit, from the last byte of the request. HTTP has no standard header for it;
the unit is in the name because the customary ones differ in nothing else."""

WAY_BACK_S = 0.002
_TIMEOUT = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?")
_HEADER_LENGTH = rest_codec.HEADER_LENGTH.encode()
_OCTETS = b"content-type: application/octet-stream\r\n"
_CLIENT_CLOSED = "499"
"""The status nginx made customary for a caller that went away; it is only ever counted."""


class InferRoute:
    """All of an inference that its head alone tells; kept with a head that comes again."""

    __slots__ = (
        "accounting",
        "admission",
        "authorization",
        "encoding",
        "fault",
        "given_id",
        "header_length",
        "model",
        "timeout_s",
        "traceparent",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        admission: Admission,
        accounting: RequestAccounting,
        head: Head,
        model: str,
        version: str,
        authorization: "CachedAuthorization | None" = None,
    ) -> None:
        self.admission = admission
        self.authorization = authorization
        self.accounting = accounting
        self.model = model
        self.version = version
        self.given_id = head.text(REQUEST_ID) or ""
        self.traceparent = head.text(TRACEPARENT) or ""
        self.header_length = head.text(rest_codec.HEADER_LENGTH)
        self.encoding = accepted_encoding(head.text("accept-encoding") or "")
        self.timeout_s: float | None = None
        self.fault: ServingError | None = None
        """What is wrong with the head, told once the body is there: the connection lives on."""
        try:
            self.timeout_s = _timeout_s(head.text(TIMEOUT_HEADER))
        except InvalidRequestError as error:
            self.fault = error


class InferExchange(Exchange):
    """One inference."""

    __slots__ = ("_entry", "_record", "_request", "_route")
    counts_refusals = True
    is_paced = True

    def __init__(self, route: InferRoute, connection: "HttpConnection", head: Head) -> None:
        # What `Exchange.__init__` sets, for a call less.
        self._connection = connection
        self.head = head
        self.last = not head.keep_alive
        self.response = None
        self.held_bytes = 0
        self._route = route
        self._record: Record | None = None
        self._request: RestRequest | None = None
        self._entry: Entry | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has its answer, or its caller has gone."""
        return self.response is not None

    def body_limit(self, max_bytes: int) -> int:
        """All that the port takes, of those who may infer."""
        authorization = self._route.authorization
        if authorization is not None:
            authorization.caller()
        return max_bytes

    def begin(self, body: Body) -> None:
        """Starts the work in its turn."""
        self._route.admission.turns.begin(self, body, self._connection)

    def begin_in_turn(self, body: Body, waited_s: float) -> None:
        """Decodes the request and lets it in."""
        route = self._route
        record = self._open_record()
        record.started -= waited_s
        caller = None
        if route.authorization is not None:
            caller = route.authorization.known
            # Written out, for it is on the way of every request.
            if caller is None or caller.ended or time.time() >= caller.expires_at:
                try:
                    caller = route.authorization.caller()
                except ServingError as error:
                    self._fail(error)
                    return
        try:
            decoded: RestRequest | Slices[RestRequest]
            if route.header_length is None and route.fault is None and len(body) < MIN_LARGE_BYTES:
                decoded = rest_codec.decode_json(body)
            else:
                decoded = self._decode(body, caller)
            if isinstance(decoded, RestRequest):
                self._let_in(decoded, waited_s, caller)
            else:
                self._read_in_slices(decoded, len(body), waited_s, caller)
        except ServingError as error:
            self._fail(error if self._request else self._fault_of_model() or error)
        except Exception as error:
            self._fail_unforeseen(error)

    def _let_in(self, request: RestRequest, waited_s: float, caller: "Caller | None") -> None:
        """Hands a decoded request to admission.

        Raises:
            ServingError: it is refused.
        """
        route, record = self._route, self._record
        assert record is not None
        self._request = request
        if request.id:
            record.request_id = route.accounting.safe_id(request.id)
        timeout_s = route.timeout_s
        if request.timeout_us:
            own_s = time_for_work(request.timeout_us / 1e6, WAY_BACK_S)
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        if timeout_s is not None:
            timeout_s -= waited_s
        call = InferCall(
            request_id=record.request_id,
            model=route.model,
            version=route.version,
            inputs=request.inputs,
            outputs=request.outputs,
            timeout_s=timeout_s,
            priority=request.priority,
            preference=request.preference,
            trace=record.trace,
            caller=caller,
        )
        answered: Done = self._answered
        if route.accounting.sampler is not None:
            answered = route.accounting.sampler.watch(call, record, answered)
        entry = route.admission.infer(call, answered)
        if self.response is None:
            self._entry = entry

    def refuse(self, error: ServingError) -> None:
        """Counts what never became a request under the model it was for."""
        self._open_record()
        self._fail(error)

    def abandon(self) -> None:
        """The caller hung up: drops the work, if it has not begun."""
        Exchange.abandon(self)
        record = self._record or self._open_record()
        if self._entry is not None:
            self._entry.cancel()
        record.close_failed(_CLIENT_CLOSED, ServingError("the caller hung up"))

    def _open_record(self) -> Record:
        route = self._route
        record = self._record = route.accounting.open(
            "rest", route.given_id, route.model, route.version, route.traceparent
        )
        return record

    def _decode(self, body: Body, caller: "Caller | None") -> RestRequest | Slices[RestRequest]:
        """Reads a body that is large, or whose head says more of it than that it is JSON."""
        route = self._route
        if route.fault is not None:
            raise route.fault
        signature = None
        if route.header_length == "0":
            signature = route.admission.directory.resolve(route.model, route.version)[1]
        check = partial(route.admission.check_inputs, route.model, route.version, caller)
        return rest_codec.decode(body, route.header_length, signature, check, self.reserve)

    def _read_in_slices(
        self, slices: Slices[RestRequest], size: int, waited_s: float, caller: "Caller | None"
    ) -> None:
        began = time.monotonic()

        def done(request: RestRequest) -> None:
            try:
                self._let_in(request, waited_s + time.monotonic() - began, caller)
            except Exception as error:
                failed(error)

        def failed(error: Exception) -> None:
            if isinstance(error, ServingError):
                self._fail(error if self._request else self._fault_of_model() or error)
            else:
                self._fail_unforeseen(error)

        self._route.admission.work.begin(slices, done, failed, lambda: self.is_over, size)

    def _fault_of_model(self) -> ServingError | None:
        """That the model is not there, which is what to say before the body's own faults."""
        route = self._route
        try:
            route.admission.directory.resolve(route.model, route.version)
        except ServingError as error:
            return error
        return None

    def _answered(self, outcome: Outcome) -> None:
        """The queue's answer, on the loop, among those of the same batch."""
        self._entry = None  # it holds us, and nothing is to wait for the garbage collector
        if isinstance(outcome, ServingError):
            self._fail(outcome)
            return
        request = self._request
        assert request is not None
        try:
            if (
                request.usual
                and len(outcome.outputs) == 1
                and not self._route.encoding
                and not outcome.artifact
                and (text := rest_codec.encode_one(outcome)) is not None
            ):
                self._succeed(outcome, JSON, [text])
            else:
                self._encode(outcome, request)
        except ServingError as error:
            self._fail(error, outcome.lane)
        except Exception as error:
            self._fail_unforeseen(error)

    def _encode(self, reply: InferReply, request: RestRequest) -> None:
        """Writes an answer, in slices if it is large.

        Raises:
            ServingError: it cannot be written in the form asked for.
        """
        encoded = rest_codec.encode(reply, request, self.reserve)
        if isinstance(encoded, rest_codec.RestBody):
            self._send(reply, encoded)
            return

        def failed(error: Exception) -> None:
            if isinstance(error, ServingError):
                self._fail(error, reply.lane)
            else:
                self._fail_unforeseen(error)

        self._request = None
        self._connection.port.budget.give(self.held_bytes)
        self.held_bytes = 0  # the answer is charged in place of the request
        self._route.admission.work.begin(
            encoded, partial(self._send, reply), failed, lambda: self.is_over
        )

    def _send(self, reply: InferReply, body: rest_codec.RestBody) -> None:
        """Sends an answer in the form that the request and its head ask for."""
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
        record = self._record
        assert record is not None
        record.close("200", reply)
        # Ids are printable ASCII: the accounting replaces any other.
        self.respond(200, b"%bx-request-id: %b\r\n" % (fields, record.request_id.encode()), parts)

    def _fail(self, error: ServingError, lane: Lane | None = None) -> None:
        record = self._record
        assert record is not None
        record.close_failed(str(error.http_status), error, lane)
        self.respond_error(error, b"x-request-id: %b\r\n" % record.request_id.encode())

    def _fail_unforeseen(self, error: Exception) -> None:
        """A fault of our own. Its neighbours in the batch are to get their answers all the same."""
        logger.error("inference failed", exc_info=error)
        self._fail(ServingError("internal error; the server's log says more"))


def _timeout_s(value: str | None) -> float | None:
    if value is None:
        return None
    if not _TIMEOUT.fullmatch(value) or not float(value):
        raise InvalidRequestError(
            f"the header {TIMEOUT_HEADER} must be a number of milliseconds above 0, "
            f"and is '{value[:40]}'"
        )
    return time_for_work(float(value) / 1000, WAY_BACK_S)
