"""The hot path of the gRPC edge: one inference, from its message to its answer.

In: a head, and the message behind it. Out: the answer's message, or a gRPC status with the error's
text; the trailing metadata of both carry `x-request-id`. Nothing is awaited: admission calls back.

Rule kept here: a call has exactly one outcome, whatever comes first: the answer, a refusal, or its
caller's leave, which cancels what has not begun.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from protos import open_inference_pb2 as pb
from services.access.credential import secret_of
from services.errors import DeadlineExceededError, InvalidRequestError, ServingError
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.edges import grpc_codec
from services.gateway.edges.binary_texts import MAX_TEXTS_AT_ONCE_BYTES
from services.gateway.edges.grpc_raw import read_infer_request
from services.gateway.edges.raw_parts import Part
from services.gateway.request_accounting import REQUEST_ID, Record, RequestAccounting
from services.gateway.scheduling_parameters import time_for_work
from services.gateway.wire.body import Body
from services.gateway.wire.http2 import headers as http2_headers
from services.gateway.wire.http2.grpc_call import UnaryCall, failure
from services.gateway.wire.http2.grpc_head import GrpcHead
from services.queueing.memory_queue import Done, Entry, Outcome
from services.queueing.records import InferReply
from services.tracing.context import TRACEPARENT

if TYPE_CHECKING:
    from services.access.authenticator import Authenticator
    from services.access.caller import Caller
    from services.gateway.wire.http2.grpc_connection import GrpcConnection

logger = logging.getLogger("flambeau.grpc")

TIMEOUT_ROUNDING = 0.01
"""A caller rounds the timeout it sends up to two digits, and gives up before we do: by this part
of it, and by a network's delay. Who leaves that close to the end is out of time."""
NETWORK_DELAY_S = 0.005
WAY_BACK_S = 0.003
"""With 2 ms, one answer in a hundred came too late under overload; the client takes longer over
gRPC than over REST."""


class InferRoute:
    """All of an inference that its head alone tells; kept with a head that comes again."""

    __slots__ = (
        "_authenticator",
        "_secret",
        "accounting",
        "admission",
        "given_id",
        "timeout_s",
        "traceparent",
    )

    def __init__(
        self,
        admission: Admission,
        accounting: RequestAccounting,
        head: GrpcHead,
        authenticator: "Authenticator | None" = None,
        secret: str = "",
    ) -> None:
        self.admission = admission
        self.accounting = accounting
        self.given_id = head.text(REQUEST_ID)
        self.traceparent = head.text(TRACEPARENT) if accounting.tracer else ""
        self.timeout_s = head.timeout_s
        self._authenticator = authenticator
        self._secret = secret

    def check(self) -> None:
        """Judges the caller, whatever it asks for.

        Raises:
            ServingError: as `Authenticator.admit`.
        """
        if self._authenticator is not None:
            self._authenticator.admit(self._secret)

    def caller(self, model: str) -> "Caller | None":
        """Who asks, and may; None where nobody is asked for a credential.

        Raises:
            ServingError: as `Authenticator.admit` and `Caller.require`.
        """
        if self._authenticator is None:
            return None
        caller = self._authenticator.admit(self._secret)
        caller.require("infer", model)
        return caller


class InferenceCall(UnaryCall):
    """One inference."""

    __slots__ = ("_entry", "_opened", "_record", "_request", "_route")
    counts_refusals = True

    def __init__(
        self, route: InferRoute, connection: "GrpcConnection", head: GrpcHead, stream: int
    ) -> None:
        super().__init__(connection, head, stream)
        self._route = route
        self._opened = time.monotonic()
        self._record: Record | None = None
        self._request: pb.ModelInferRequest | None = None
        self._entry: Entry | None = None

    def check_caller(self) -> None:
        """The key may have ended since its head was read first."""
        self._route.check()

    def begin(self, message: Body) -> None:
        """Starts the work in its turn."""
        self._route.admission.turns.begin(self, message, self.connection)

    def begin_in_turn(self, body: Body, waited_s: float) -> None:
        """Reads the request and lets it in."""
        route = self._route
        try:
            request, raw = read_infer_request(body)
        except InvalidRequestError as error:
            self.refuse(error)
            return
        self._request, model = request, request.model_name
        record = self._record = route.accounting.open(
            "grpc", request.id or route.given_id, model, request.model_version, route.traceparent
        )
        record.started -= waited_s
        try:
            caller = route.caller(model)
            if len(body) > MAX_TEXTS_AT_ONCE_BYTES and grpc_codec.has_long_texts(request, raw):
                self._read_in_slices(request, raw, caller, waited_s)
            else:
                self._let_in(request, grpc_codec.decode_inputs(request, raw), caller, waited_s)
        except Exception as error:
            self._fail_by(error)

    def _let_in(
        self,
        request: pb.ModelInferRequest,
        inputs: list[InputTensor],
        caller: "Caller | None",
        waited_s: float,
    ) -> None:
        """Hands a decoded request to admission.

        Raises:
            ServingError: it is refused.
        """
        route, record = self._route, self._record
        assert record is not None
        timeout_us, priority = grpc_codec.scheduling(request)
        call = InferCall(
            request_id=record.request_id,
            model=request.model_name,
            version=request.model_version,
            inputs=inputs,
            outputs=grpc_codec.asked_outputs(request),
            timeout_s=self._time_for_work(timeout_us, record.started, waited_s),
            priority=priority,
            preference=grpc_codec.artifact_preference(request),
            trace=record.trace,
            caller=caller,
        )
        answered: Done = self._answered
        if route.accounting.sampler is not None:
            answered = route.accounting.sampler.watch(call, record, answered)
        entry = route.admission.infer(call, answered)
        if not self.is_over:
            self._entry = entry

    def _read_in_slices(
        self,
        request: pb.ModelInferRequest,
        raw: Sequence[grpc_codec.Raw],
        caller: "Caller | None",
        waited_s: float,
    ) -> None:
        began = time.monotonic()

        def done(inputs: list[InputTensor]) -> None:
            try:
                self._let_in(request, inputs, caller, waited_s + time.monotonic() - began)
            except Exception as error:
                self._fail_by(error)

        slices = grpc_codec.decode_in_slices(request, raw, self.reserve)
        self._route.admission.work.begin(
            slices, done, self._fail_by, lambda: self.is_over, self.held_bytes
        )

    def refuse(self, error: ServingError) -> None:
        """Counts what never became a request, too."""
        if self._record is None:
            self._open_record()
        self._fail(error)

    def abandon(self) -> None:
        """The caller has gone; what it asked for is not needed any more."""
        record = self._record or self._open_record()
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()
        allowed_s = self._route.timeout_s
        if allowed_s is not None:
            late_s = allowed_s * (1 - TIMEOUT_ROUNDING) - NETWORK_DELAY_S
            if time.monotonic() >= self._opened + late_s:
                late = "the caller's time ran out before the reply"
                record.close_failed("DEADLINE_EXCEEDED", DeadlineExceededError(late))
                return
        record.close_failed("CANCELLED", ServingError("the caller cancelled the call"))

    def _time_for_work(self, timeout_us: int, came_at: float, waited_s: float) -> float | None:
        """The smaller of what is left of the parameter `timeout` and of gRPC's own."""
        allowed_s = self._route.timeout_s
        if allowed_s is not None:
            allowed_s -= came_at + waited_s - self._opened
            if timeout_us:
                allowed_s = min(allowed_s, timeout_us / 1e6 - waited_s)
        elif timeout_us:
            allowed_s = timeout_us / 1e6 - waited_s
        else:
            return None
        return time_for_work(allowed_s, WAY_BACK_S)

    def _open_record(self) -> Record:
        """For a call whose message says nothing."""
        route = self._route
        record = self._record = route.accounting.open(
            "grpc", route.given_id, "", "", route.traceparent
        )
        return record

    def _answered(self, outcome: Outcome) -> None:
        """The queue's answer, on the loop, among those of the same batch."""
        self._entry = None  # it holds us, and nothing is to wait for the garbage collector
        if self.is_over:
            return
        if isinstance(outcome, ServingError):
            self._fail(outcome)
            return
        record, request = self._record, self._request
        assert record is not None
        assert request is not None
        if self.connection.sending.unsent_bytes > self.connection.share_bytes:
            self._fail(self.connection.unread())
            return
        try:
            message = grpc_codec.encode_serialized(outcome, request, self.reserve)
            if not isinstance(message, bytes):
                self._request = None
                self.connection.port.budget.give(self.held_bytes)
                self.held_bytes = 0  # the answer is charged in place of the request
                self._route.admission.work.begin(
                    message, partial(self._send_parts, outcome), self._fail_by, lambda: self.is_over
                )
                return
        except Exception as error:
            self._fail_by(error)
            return
        record.close("OK", outcome)
        self.reply(message, http2_headers.write([(REQUEST_ID, record.request_id)]))

    def _send_parts(self, outcome: InferReply, parts: list[Part]) -> None:
        """Sends a large answer, which has been made in slices."""
        record = self._record
        assert record is not None
        record.close("OK", outcome)
        self.reply_in_parts(parts, http2_headers.write([(REQUEST_ID, record.request_id)]))

    def _fail_by(self, error: Exception) -> None:
        """A refusal; or a fault of our own, which the log tells of."""
        if isinstance(error, ServingError):
            self._fail(error)
        else:
            logger.error("a request failed in the gateway", exc_info=error)
            self._fail(failure(error))

    def _fail(self, error: ServingError) -> None:
        if self.is_over:
            return
        record = self._record
        assert record is not None
        record.close_failed(error.grpc_code, error)
        self.fail(error, (REQUEST_ID, record.request_id))


def secret_in(head: GrpcHead) -> str:
    """The credential in a call's metadata; empty if there is none that can be read.

    Raises:
        InvalidRequestError: there are two.
    """
    return secret_of(head.text("authorization"), head.text("x-api-key"))
