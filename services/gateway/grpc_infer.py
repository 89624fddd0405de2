"""`ModelInfer` over gRPC: one inference, from its message to its answer.

In: a message and its call's context, in one of grpcio's threads. Out: the answer's message, or a
gRPC status with the error's text. Every answer's trailing metadata carries `x-request-id`.

A call in five steps, `thread` being grpcio's and `loop` the event loop's:
1. thread: reads the message into an `InferCall`;
2. thread: posts the call to the loop, and sleeps until it has an outcome;
3. loop: hands it to admission, which answers later;
4. loop: closes its record and wakes the thread;
5. thread: writes the answer.
When the caller cancels, hangs up or is out of time, grpcio says so and the thread is let go at
once; the loop cancels the entry.

Rules kept here: admission is touched on the loop alone, and a record by the thread until it is
posted, by the loop from then on; a call has exactly one outcome, whatever comes first.
"""

import logging
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import grpc

from protos import open_inference_pb2 as pb
from services.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ServingError,
    TooManyInFlightError,
)
from services.gateway import grpc_codec
from services.gateway.admission import Admission, InferCall
from services.gateway.grpc_mailbox import Mailbox
from services.gateway.grpc_replies import failure, refuse, refuse_gone, secret_in
from services.gateway.ledger import REQUEST_ID, Ledger, Record
from services.gateway.scheduling import time_for_work
from services.queueing.memory_queue import Done, Entry, Outcome
from services.tracing.context import TRACEPARENT

if TYPE_CHECKING:
    from services.access.caller import Caller
    from services.access.door import Door

logger = logging.getLogger("flambeau.grpc")

TIMEOUT_ROUNDING = 0.01
"""A caller rounds the timeout it sends up to two digits, and gives up before we do: by this part
of it, and by a network's delay. Who leaves that close to the end is out of time."""
NETWORK_DELAY_S = 0.005
WAY_BACK_S = 0.005
"""A thread has to be woken, and grpcio's own, before an answer leaves."""


class InferHandler:
    """Answers `ModelInfer` calls; grpcio calls it in its threads.

    Args:
        admission: lets requests in.
        ledger: counts them.
        mailbox: to the loop both belong to.
        max_calls: how many may wait for an answer at once.
        door: knows callers, where they are asked for credentials.
    """

    def __init__(
        self,
        admission: Admission,
        ledger: Ledger,
        mailbox: Mailbox,
        max_calls: int,
        door: "Door | None" = None,
    ) -> None:
        self._door = door
        self.ledger = ledger
        self._max_calls = max_calls
        self.admission = admission
        self.mailbox = mailbox
        self.running = 0
        """Calls that wait for admission's answer; the loop counts them."""

    def __call__(
        self, request: pb.ModelInferRequest | InvalidRequestError, context: grpc.ServicerContext
    ) -> pb.ModelInferResponse:
        """One call, from its message to its answer."""
        broken: ServingError | None = None
        if isinstance(request, InvalidRequestError):
            broken, request = request, pb.ModelInferRequest()
        given_id = request.id or _metadata(context, REQUEST_ID)
        traceparent = _metadata(context, TRACEPARENT) if self.ledger.tracer else ""
        record = self.ledger.open(
            "grpc", given_id, request.model_name, request.model_version, traceparent
        )
        request_id = record.request_id
        remaining_s = context.time_remaining()
        caller = None
        if self._door is not None:
            try:
                caller = self._door.admit(secret_in(context))
                caller.require("infer", request.model_name)
            except ServingError as error:
                broken = error
        wanted = broken or _read(request, record, remaining_s, caller)
        call = _Call(self, record, wanted, remaining_s)
        if context.add_callback(call.has_ended):
            self.mailbox.post(call.begin)
        else:
            call.has_ended()
        outcome = call.outcomes.get()
        if outcome is None:
            refuse_gone(context)
        if isinstance(outcome, ServingError):
            refuse(context, outcome, (REQUEST_ID, request_id))
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        return grpc_codec.encode(outcome, request)

    def check_limit(self) -> None:
        """Refuses the newest of the running calls if it is one too many.

        Raises:
            TooManyInFlightError: it is.
        """
        if self.running > self._max_calls:
            raise TooManyInFlightError(
                f"{self._max_calls} gRPC calls are running here, the limit (max_grpc_calls); "
                "retry later or add servers"
            )


class _Call:
    """One inference on its way; all but `has_ended` belongs to the loop.

    Attributes:
        outcomes: what the thread waits for, and takes the first of: an answer, an error, or None
            when nobody is there to be answered.
    """

    __slots__ = (
        "_begun",
        "_done",
        "_entry",
        "_handler",
        "_late_from",
        "_record",
        "_wanted",
        "outcomes"
    )  # fmt: skip

    def __init__(
        self,
        handler: InferHandler,
        record: Record,
        wanted: InferCall | ServingError,
        remaining_s: float,
    ) -> None:
        self._handler = handler
        self._record = record
        self._wanted = wanted
        self._entry: Entry | None = None
        self._begun = self._done = False
        self._late_from = time.monotonic() + remaining_s * (1 - TIMEOUT_ROUNDING) - NETWORK_DELAY_S
        self.outcomes: SimpleQueue[Outcome | None] = SimpleQueue()

    def has_ended(self) -> None:
        """The call is over: answered, or its caller has gone. From any thread, perhaps twice."""
        if not self._done:
            # The thread does not wait for the loop, which may be busy, or at its end.
            self.outcomes.put(None)
            self._handler.mailbox.post(self._leave)

    def begin(self) -> None:
        """Asks admission, unless the caller has gone already."""
        if self._done:
            return
        handler, wanted = self._handler, self._wanted
        if isinstance(wanted, ServingError):
            self._finish(wanted.grpc_code, wanted)
            return
        self._begun = True
        handler.running += 1
        try:
            handler.check_limit()
            answered: Done = self._answered
            if handler.ledger.sampler is not None:
                answered = handler.ledger.sampler.watch(wanted, self._record, answered)
            self._entry = handler.admission.infer(wanted, answered)
        except ServingError as error:
            self._finish(error.grpc_code, error)
        except Exception as error:
            logger.exception("a request failed in the gateway")
            self._finish("INTERNAL", failure(error))

    def _answered(self, outcome: Outcome) -> None:
        if isinstance(outcome, ServingError):
            self._finish(outcome.grpc_code, outcome)
        else:
            self._finish("OK", outcome)

    def _leave(self) -> None:
        """The caller has gone; what it asked for is not needed any more."""
        if self._done:
            return
        if self._entry is not None:
            self._entry.cancel()
        if time.monotonic() >= self._late_from:
            late = "the caller's time ran out before the reply"
            self._finish("DEADLINE_EXCEEDED", DeadlineExceededError(late))
        else:
            self._finish("CANCELLED", ServingError("the caller cancelled the call"))

    def _finish(self, code: str, outcome: Outcome) -> None:
        """Closes the record and wakes the thread, once."""
        self._done = True
        self._entry = None  # which holds on to this call
        self._handler.running -= self._begun
        try:
            if isinstance(outcome, ServingError):
                self._record.close_failed(code, outcome)
            else:
                self._record.close(code, outcome)
        finally:
            self.outcomes.put(outcome)


def _read(
    request: pb.ModelInferRequest, record: Record, remaining_s: float, caller: "Caller | None"
) -> InferCall | ServingError:
    """What admission is asked for, or why the message cannot be read."""
    try:
        timeout_us, priority = grpc_codec.scheduling(request)
        return InferCall(
            request_id=record.request_id,
            model=request.model_name,
            version=request.model_version,
            inputs=grpc_codec.decode_inputs(request),
            outputs=[output.name for output in request.outputs],
            timeout_s=time_for_work(
                min(remaining_s, timeout_us / 1e6) if timeout_us else remaining_s, WAY_BACK_S
            ),
            priority=priority,
            wish=grpc_codec.artifact_wish(request),
            trace=record.trace,
            caller=caller,
        )
    except ServingError as error:
        return error


def _metadata(context: grpc.ServicerContext, name: str) -> str:
    """A text the caller sent beside the message, or nothing."""
    return next((str(v) for key, v in context.invocation_metadata() if key == name), "")
