"""Predictions over TorchServe's gRPC: one answer, intermediate answers, or a sequence of requests.

In: `PredictionsRequest`s. Out: `PredictionResponse`s, each as a handler gives it, or a status.
What a request means is written in `services/gateway/torchserve/predictions.py`.

Rules, which are TorchServe's:
- the status and the headers that a handler sets are not part of an answer;
- of intermediate answers, `Predictions` gives the first;
- `StreamPredictions2` answers its requests one after the other; an error is an answer with a
  status, and the call goes on.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from model_store.archives.handler_calls import HandlerRequest, Part
from protos.torchserve import inference_pb2 as pb
from services.errors import ServingError, ShuttingDownError
from services.gateway.admission import InferCall
from services.gateway.edges.grpc_infer import WAY_BACK_S, GrpcInference
from services.gateway.edges.grpc_large_answer import LARGE_BYTES, field_head
from services.gateway.edges.torchserve import grpc_statuses
from services.gateway.edges.torchserve.grpc_tokens import GrpcToken
from services.gateway.inference import Inference
from services.gateway.request_accounting import REQUEST_ID
from services.gateway.torchserve.archive_registry import target
from services.gateway.torchserve.predictions import SEQUENCE, Predictions
from services.queueing.records import InferReply
from services.tracing.context import TRACEPARENT
from services.wire.body import Body
from services.wire.http2 import headers as http2_headers
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_call import STATUS_CODES, Call, UnaryCall, parsed
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.stream_call import StreamCall

if TYPE_CHECKING:
    from services.access.caller import Caller

_PREDICTION = b"\x0a"
"""Tag of `PredictionResponse.prediction`."""
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_REASON = b"\x0a"
"""Tag of `ErrorInfo.reason`."""


class PredictionRoute:
    """Facts of a call that its head alone determines; cached with a repeated head."""

    __slots__ = ("given_id", "path", "predictions", "timeout_s", "token", "traceparent")

    def __init__(
        self, predictions: Predictions, head: GrpcHead, token: GrpcToken | None = None
    ) -> None:
        self.predictions, self.path = predictions, predictions.path
        self.token = token
        self.given_id = head.text(REQUEST_ID)
        tracer = self.path.accounting.tracer
        self.traceparent = head.text(TRACEPARENT) if tracer else ""
        self.timeout_s = head.timeout_s


class PredictionSink(GrpcInference):
    """The end of one prediction at a time; its subclasses are calls, and have the slots.

    `_asked` is its message until it is decoded; `_version` the version that it names.
    """

    __slots__ = ()
    _asked: pb.PredictionsRequest | None
    _route: PredictionRoute
    _version: str
    connection: CallConnection
    head: GrpcHead
    reserve: Callable[[int], None]

    def key(self, source: str, name: str) -> str:
        """Returns the value of a metadata entry; see `ReplySink`."""
        return self.head.text(name) if source == "header" else ""

    def check_caller(self) -> None:
        """Checks the token: it may have expired since the head was first read."""
        if self._route.token is not None:
            self._route.token.check()

    def begin(self, message: Body) -> None:
        """Queues the work for its turn of the event loop."""
        turns = self._route.path.admission.turns
        turns.begin(self, message, self.connection)  # type: ignore[arg-type]  # it is a call, too

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Parses the message, which names the model, and starts the prediction."""
        route = self._route
        try:
            self.check_caller()
            asked = parsed(pb.PredictionsRequest, body)
            if len(body) > LARGE_BYTES:
                self.reserve(len(body))  # of its values, which are copies
        except ServingError as error:
            self.refuse(error)
            return
        self._asked, self._version = asked, asked.model_version  # type: ignore[misc]
        model, alias = target(asked.model_name, asked.model_version)
        inference = route.path.open(
            self,  # type: ignore[arg-type]  # with the call that it is a part of
            received_at, route.given_id, model, alias, route.traceparent,
        )  # fmt: skip
        self._inference = inference  # type: ignore[misc]
        if not asked.model_name:
            inference.fail(grpc_statuses.no_model_name())
        elif (fault := self.fault(asked)) is not None:
            inference.fail(fault)
        else:
            route.predictions.begin(inference, body, asked.model_version)

    def fault(self, asked: pb.PredictionsRequest) -> ServingError | None:
        """Returns the error of a message that this call does not take; None for none."""
        return None

    # Called by `Inference`.

    def decode(self, body: Body, caller: "Caller | None") -> InferCall:
        """Returns the call of the message."""
        asked, inference = self._asked, self._inference
        self._asked = None  # type: ignore[misc]
        assert asked is not None
        assert inference is not None
        headers = {SEQUENCE: asked.sequence_id} if asked.HasField("sequence_id") else {}
        parts = [Part(name, "", data) for name, data in asked.input.items()]
        request = HandlerRequest(id=inference.request_id, headers=headers, parts=parts)
        call = self._route.predictions.call(inference, request, caller)
        allowed_s = self._route.timeout_s
        if allowed_s is not None:
            until = min(call.deadline, self._opened + allowed_s - WAY_BACK_S)
            call = msgspec.structs.replace(call, deadline=until)
        return call

    def failure(self, error: ServingError) -> ServingError:
        """Returns an error in TorchServe's words."""
        inference = self._inference
        if inference is not None and inference.model and not grpc_statuses.has_status(error):
            error = self._route.predictions.refused(error, inference.model, self._version)
        return grpc_statuses.of_prediction(error)

    def encoded(self, reply: InferReply) -> tuple[bytes, bytes | memoryview]:
        """Returns the answer in a reply: the head of its field, and the bytes behind.

        Raises:
            RefusedError: the handler failed.
            ServingError: too many bytes wait for the caller, or there is no answer.
        """
        connection = self.connection
        if connection.sending.unsent_bytes > connection.share_bytes:
            raise connection.unread()
        body = self._route.predictions.answer(reply).body
        return field_head(_PREDICTION, len(body)) if body else b"", body

    def answered(self, reply: InferReply) -> None:
        """Accounts for the last answer, before it is written."""
        assert self._inference is not None
        self._route.predictions.answered(self._inference, reply, self._version)

    def named(self) -> bytes:
        """Returns trailing metadata with the id of the request."""
        assert self._inference is not None
        return http2_headers.write([(REQUEST_ID, self._inference.request_id)])


class PredictionCall(PredictionSink, UnaryCall):
    """`Predictions`: one answer."""

    __slots__ = ("_asked", "_inference", "_opened", "_route", "_version")
    counts_refusals = True

    def __init__(
        self, route: PredictionRoute, connection: CallConnection, head: GrpcHead, stream: int
    ) -> None:
        UnaryCall.__init__(self, connection, head, stream)
        self._route = route
        self._opened = time.monotonic()
        self._asked: pb.PredictionsRequest | None = None
        self._inference: Inference | None = None
        self._version = ""

    def part(self, reply: InferReply) -> None:
        """Answers with the first reply; further ones are dropped."""
        if not self.is_over:
            head, body = self.encoded(reply)
            is_large = len(body) > LARGE_BYTES
            if is_large:
                self.reserve(len(body))
            metadata = self.named()
            if reply.is_last:
                self.answered(reply)
            if is_large:
                self.reply_in_parts([head, body], metadata)
            else:
                self.reply(head + body, metadata)
        if reply.is_last:
            self.end(reply)
        else:
            assert reply.window is not None
            reply.window.take()

    def end(self, reply: InferReply) -> None:
        """Ends the prediction behind its answers; without one, the answer is empty."""
        inference = self._inference
        assert inference is not None
        if not inference.is_over:
            metadata = self.named()
            self.answered(reply)
            self.reply(b"", metadata)

    def fail(self, error: ServingError, *metadata: tuple[str, str]) -> None:
        """Ends the call with an error's status and message, and the request's id."""
        inference = self._inference
        assert inference is not None
        Call.fail(self, self.failure(error), (REQUEST_ID, inference.request_id), *metadata)


class StreamedPredictionCall(PredictionCall):
    """`StreamPredictions`: intermediate answers, and the last one."""

    __slots__ = ()

    def part(self, reply: InferReply) -> None:
        """Sends an answer, as fast as the caller reads."""
        message = b"".join(self.encoded(reply))
        if reply.is_last:
            self.send(message)
            self.end(reply)
        else:
            assert reply.window is not None
            self.send(message, reply.window.take)

    def end(self, reply: InferReply) -> None:
        """Ends the call behind its answers."""
        self.answered(reply)
        self.finish()


class SequenceCall(PredictionSink, StreamCall):
    """`StreamPredictions2`: requests one after the other, and the answers to each.

    Args:
        open_calls: the calls of this kind that are open.
    """

    __slots__ = (
        "_asked", "_inference", "_open_calls", "_opened", "_route", "_runs", "_version",
    )  # fmt: skip

    def __init__(
        self,
        open_calls: "set[SequenceCall]",
        route: PredictionRoute,
        connection: CallConnection,
        head: GrpcHead,
        stream: int,
    ) -> None:
        StreamCall.__init__(self, connection, head, stream)
        self._route = route
        self._open_calls = open_calls
        self._opened = time.monotonic()
        self._asked: pb.PredictionsRequest | None = None
        self._inference: Inference | None = None
        self._version = ""
        self._runs = False
        open_calls.add(self)

    # Called by the connection.

    def take(self, message: Body) -> None:
        """Begins a request; those behind it wait."""
        self._runs = True
        self.hold()
        self.reserve(len(message))
        self.begin(message)

    def end_input(self) -> None:
        """Ends the call, unless a request runs: then once that is answered."""
        if not self._runs:
            self.finish()

    def finish(self) -> None:
        """Ends the call with the status OK."""
        StreamCall.finish(self)
        self._open_calls.discard(self)

    def refuse(self, error: ServingError) -> None:
        """Ends the call: what came is no message."""
        self.break_off(error)

    def abandon(self) -> None:
        """Cancels the request that runs."""
        self._open_calls.discard(self)
        if self._runs:
            PredictionSink.abandon(self)

    def break_off(self, error: ServingError) -> None:
        """Ends the call with a status, and cancels the request that runs."""
        self._open_calls.discard(self)
        if not self.is_over:
            Call.fail(self, grpc_statuses.of_prediction(error))
            if self._inference is not None:
                self._inference.cancel(error.grpc_code, error)

    # Called by `Inference`, and by `PredictionSink`.

    def fault(self, asked: pb.PredictionsRequest) -> ServingError | None:
        """Returns the error of a message without a sequence."""
        if asked.sequence_id.strip():
            return None
        words = "Parameter sequenceId is required."
        return grpc_statuses.StatusError("INTERNAL", words, "BadRequestException.()")

    def part(self, reply: InferReply) -> None:
        """Sends an answer, as fast as the caller reads."""
        head, body = self.encoded(reply)
        if reply.is_last:
            self.send_parts((head, body), None)
            self.end(reply)
        else:
            assert reply.window is not None
            self.send_parts((head, body), reply.window.take)

    def end(self, reply: InferReply) -> None:
        """Goes on with the next request."""
        self.answered(reply)
        self._go_on_soon()

    def release(self) -> None:
        """Nothing is given back before the answer."""

    def fail(self, error: ServingError, *metadata: tuple[str, str]) -> None:
        """Sends an error as an answer, or ends the call where it is none of a request."""
        if not self._runs:
            self.break_off(error)
            return
        self.send_parts((_error_answer(self.failure(error)),), None)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Takes the next request once the caller has read, and in a later turn.

        Thousands may wait that fail at once.
        """
        self.connection.port.budget.give(self.held_bytes)
        self.held_bytes = 0
        self._inference = None
        asyncio.get_running_loop().call_soon(self.when_sent, self._go_on)

    def _go_on(self) -> None:
        self._runs = False
        if not self.is_over:
            self.go_on()


def leave(calls: "set[SequenceCall]") -> None:
    """Ends open calls: the server shuts down, and has answered their requests."""
    error = ShuttingDownError("this server is shutting down; open the call at another")
    for call in tuple(calls):
        call.break_off(error)


def _error_answer(error: ServingError) -> bytes:
    """Returns an answer with the status of an error."""
    answer = pb.PredictionResponse()
    answer.status.code = STATUS_CODES[error.grpc_code]
    answer.status.message = grpc_statuses.text_of(getattr(error, "message", str(error)))
    if reason := getattr(error, "reason", ""):
        encoded = reason.encode()
        details = answer.status.details.add(type_url=_ERROR_INFO)
        details.value = field_head(_REASON, len(encoded)) + encoded
    return answer.SerializeToString()
