"""The hot path of the REST edge: one inference, from its whole body to its whole answer.

In: a head that names a model, and its body. Out: the protocol's JSON or binary answer, or
`{"error": ...}`. Nothing is awaited: admission calls back.
"""

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_store.signature import Signature
from services.errors import InvalidRequestError, ServingError
from services.gateway import rest_codec
from services.gateway.admission import Admission, InferAnswer, InferCall, Ticket
from services.gateway.http_body import Body
from services.gateway.http_compression import MIN_COMPRESSED_BYTES, accepted_encoding
from services.gateway.http_exchange import JSON, Exchange
from services.gateway.http_head import Head
from services.gateway.ledger import REQUEST_ID, Ledger, Record
from services.gateway.rest_request import RestRequest

if TYPE_CHECKING:
    from services.gateway.http_protocol import HttpConnection

logger = logging.getLogger("flambeau.http")

TIMEOUT_HEADER = "x-request-timeout-ms"
"""The caller's own limit, from the last byte of the request. HTTP has no standard header for it;
the unit is in the name because the customary ones differ in nothing else."""

_TIMEOUT = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?")
_HEADER_LENGTH = rest_codec.HEADER_LENGTH.encode()
_OCTETS = b"content-type: application/octet-stream\r\n"
_CLIENT_CLOSED = "499"
"""The status nginx made customary for a caller that went away; it is only ever counted."""


class InferRoute:
    """All of an inference that its head alone tells; kept with a head that comes again."""

    __slots__ = (
        "admission", "encoding", "fault", "given_id", "header_length", "ledger", "model",
        "timeout_s", "version",
    )  # fmt: skip

    def __init__(
        self, admission: Admission, ledger: Ledger, head: Head, model: str, version: str
    ) -> None:
        self.admission = admission
        self.ledger = ledger
        self.model = model
        self.version = version
        self.given_id = head.text(REQUEST_ID) or ""
        self.header_length = head.text(rest_codec.HEADER_LENGTH)
        self.encoding = accepted_encoding(head.text("accept-encoding") or "")
        self.timeout_s: float | None = None
        self.fault: ServingError | None = None
        """What is wrong with the head, told once the body is there: the connection lives on."""
        try:
            self.timeout_s = _timeout_s(head.text(TIMEOUT_HEADER))
        except InvalidRequestError as error:
            self.fault = error

    def open(self, connection: "HttpConnection", head: Head) -> "InferExchange":
        """The exchange of one request."""
        return InferExchange(connection, head, self)


class InferExchange(Exchange):
    """One inference."""

    __slots__ = ("_record", "_request", "_route", "_ticket")

    def __init__(self, connection: "HttpConnection", head: Head, route: InferRoute) -> None:
        Exchange.__init__(self, connection, head)
        self._route = route
        self._record: Record | None = None
        self._request: RestRequest | None = None
        self._ticket: Ticket | None = None

    def begin(self, body: Body) -> None:
        """Decodes the request and lets it in."""
        record = self._open_record()
        try:
            self._admit(body, record)
        except ServingError as error:
            self._fail(error)
        except Exception as error:
            self._fail_unforeseen(error)

    def refuse(self, error: ServingError) -> None:
        """Counts what never became a request under the model it was for."""
        self._open_record()
        self._fail(error)

    def abandon(self) -> None:
        """The caller hung up: drops the work, if it has not begun."""
        Exchange.abandon(self)
        record = self._record or self._open_record()
        if self._ticket is not None:
            self._ticket.cancel()
        record.close(_CLIENT_CLOSED, ServingError("the caller hung up"))

    def _open_record(self) -> Record:
        route = self._route
        record = self._record = route.ledger.open("rest")
        record.name(route.given_id, route.model, route.version)
        return record

    def _admit(self, body: Body, record: Record) -> None:
        route = self._route
        request = self._request = self._decode(body)
        if request.id:
            record.name(request.id, route.model, route.version)
        timeout_s = route.timeout_s
        if request.timeout_us:
            own_s = request.timeout_us / 1e6
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        call = InferCall(
            request_id=record.request_id,
            model=route.model,
            version=route.version,
            inputs=request.inputs,
            outputs=request.outputs,
            timeout_s=timeout_s,
            priority=request.priority,
        )
        ticket = route.admission.infer(call, self._answered)
        if self.response is None:
            self._ticket = ticket

    def _decode(self, body: Body) -> RestRequest:
        route = self._route
        try:
            if route.fault is not None:
                raise route.fault
            signature = self._signature() if route.header_length == "0" else None
            return rest_codec.decode(body, route.header_length, signature)
        except ServingError:
            self._signature()  # a model that is not there is what to say first
            raise

    def _signature(self) -> Signature:
        route = self._route
        return route.admission.directory.resolve(route.model, route.version)[1]

    def _answered(self, outcome: InferAnswer | ServingError) -> None:
        """Admission's answer, on the loop, among those of the same batch."""
        self._ticket = None  # it holds us, and nothing is to wait for the garbage collector
        if isinstance(outcome, ServingError):
            self._fail(outcome)
            return
        assert self._record is not None
        assert self._request is not None
        try:
            self._record.answered(outcome)
            self._send(rest_codec.encode(outcome, self._request))
        except ServingError as error:
            self._fail(error)
        except Exception as error:
            self._fail_unforeseen(error)

    def _send(self, body: rest_codec.RestBody) -> None:
        encoding = self._route.encoding
        fields = JSON
        if body.json_length is not None:
            fields = b"%b%b: %d\r\n" % (_OCTETS, _HEADER_LENGTH, body.json_length)
        if encoding and body.length >= MIN_COMPRESSED_BYTES:
            fields += b"content-encoding: %b\r\n" % encoding.encode()
            self.compress(body.parts, encoding, lambda parts: self._succeed(fields, parts))
        else:
            self._succeed(fields, body.parts)

    def _succeed(self, fields: bytes, parts: Sequence[bytes | memoryview]) -> None:
        assert self._record is not None
        self._record.close("200")
        self.respond(200, fields + _id_field(self._record), parts)

    def _fail(self, error: ServingError) -> None:
        assert self._record is not None
        self._record.close(str(error.http_status), error)
        self.respond_error(error, _id_field(self._record))

    def _fail_unforeseen(self, error: Exception) -> None:
        """A fault of our own. Its neighbours in the batch are to get their answers all the same."""
        logger.error("inference failed", exc_info=error)
        self._fail(ServingError("internal error; the server's log says more"))


def _id_field(record: Record) -> bytes:
    """Ids are printable ASCII: the ledger replaces any other."""
    return b"x-request-id: %b\r\n" % record.request_id.encode()


def _timeout_s(value: str | None) -> float | None:
    if value is None:
        return None
    if not _TIMEOUT.fullmatch(value) or not float(value):
        raise InvalidRequestError(
            f"the header {TIMEOUT_HEADER} must be a number of milliseconds above 0, "
            f"and is '{value[:40]}'"
        )
    return float(value) / 1000
