"""Admission: decides whether a decoded request is let in, and brings its answer.

In: an `InferCall`, the same whichever edge decoded it. Out: an `InferAnswer`, or a `ServingError`.

One request, in order:
1. the gateway must not be draining, and have a permit left (`max_in_flight_requests`);
2. the model name and version are resolved to a lane that is ready;
3. names, datatypes, shapes and the batch size are checked against the signature;
4. the deadline is stamped: the caller's, but never later than `request_timeout_s`;
5. the request is enqueued; its outcome comes back as a call.

Rules kept here: nothing waits between 1 and 5, so the lane cannot go away in between; a permit is
given back whatever happens; the edge is called once, or never after it cancelled.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from model_store.signature import Signature, SignatureError
from model_store.tensors import Array
from services.errors import (
    InvalidRequestError,
    ServingError,
    ShuttingDownError,
    TooManyInFlightError,
)
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue, Outcome
from services.queueing.records import DEFAULT_PRIORITY, InferReply, InferRequest, Lane
from services.telemetry.metrics import Metrics


class InputTensor(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One decoded input."""

    name: str
    datatype: str
    array: Array


class InferCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request as an edge decoded it; nothing in it has been checked against the model yet."""

    request_id: str
    model: str
    version: str
    """As the caller wrote it; empty for the live version."""
    inputs: Sequence[InputTensor]
    outputs: Sequence[str] = ()
    """Names asked for; empty for all."""
    timeout_s: float | None = None
    """The caller's own limit, from now."""
    priority: int = 0
    """1 (first) to 10 (last); 0 for the default."""


class InferAnswer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What an edge encodes."""

    lane: Lane
    outputs: Mapping[str, Array]
    """In the order asked for, or the signature's."""
    datatypes: Mapping[str, str]
    reply: InferReply


Answered = Callable[[InferAnswer | ServingError], None]


class _Known:
    """What is worked out once for each signature, so that no request pays for it."""

    __slots__ = ("datatypes", "inputs", "max_rows", "signature")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.datatypes = {spec.name: spec.datatype for spec in signature.outputs}
        self.max_rows = signature.max_batch_size
        # Shapes that vary take the slow way, which knows all the rules.
        fixed = signature.padding is None and all(
            -1 not in spec.shape[1:] for spec in signature.inputs
        )
        self.inputs = (
            tuple((spec.name, spec.datatype, spec.shape[1:]) for spec in signature.inputs)
            if fixed
            else ()
        )

    def rows_of(self, inputs: Sequence[InputTensor]) -> int:
        """Rows of inputs that plainly fit: all there, in order, one batch size; else 0."""
        if len(inputs) != len(self.inputs):
            return 0
        rows = inputs[0].array.shape[:1]
        for tensor, (name, datatype, tail) in zip(inputs, self.inputs, strict=True):
            if (
                tensor.name != name
                or tensor.datatype != datatype
                or tensor.array.shape != rows + tail
            ):
                return 0
        return rows[0] if rows and rows[0] <= self.max_rows else 0


class Ticket:
    """One request that was let in, until its edge is called or cancels."""

    __slots__ = ("_admission", "_answered", "_known", "_names", "entry")

    def __init__(
        self, admission: "Admission", answered: Answered, known: _Known, names: Sequence[str]
    ) -> None:
        self._admission = admission
        self._answered = answered
        self._known = known
        self._names = names
        self.entry: Entry | None = None

    def cancel(self) -> None:
        """The caller has gone: the work is dropped if it has not begun; the edge is not called."""
        if self.entry is not None and not self.entry.dead:
            self.entry.cancel()
            self._admission.give_back_permit()

    def finish(self, lane: Lane, outcome: Outcome) -> None:
        """Gives the permit back and calls the edge."""
        self._admission.give_back_permit()
        if isinstance(outcome, ServingError):
            self._answered(outcome)
            return
        outputs = outcome.outputs
        if self._names:
            outputs = {name: outputs[name] for name in self._names}
        self._answered(
            InferAnswer(lane=lane, outputs=outputs, datatypes=self._known.datatypes, reply=outcome)
        )


class Admission:
    """Lets requests in, one permit each."""

    def __init__(
        self,
        directory: Directory,
        queue: MemoryQueue,
        metrics: Metrics,
        *,
        max_in_flight_requests: int,
        request_timeout_s: float,
    ) -> None:
        self.directory = directory
        self.draining = False
        self._queue = queue
        self._max_in_flight = max_in_flight_requests
        self._timeout_s = request_timeout_s
        self._in_flight = 0
        metrics.in_flight.set_function(lambda: self._in_flight)
        self._idle = asyncio.Event()
        self._idle.set()
        self._known: dict[int, _Known] = {}

    def refuse_new(self) -> None:
        """Lets nothing more in."""
        self.draining = True

    async def wait_idle(self, timeout_s: float) -> int:
        """Waits for everything that is in.

        Returns:
            The requests that were still in flight when the time was up.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._in_flight

    def infer(self, call: InferCall, answered: Answered) -> Ticket:
        """Lets one request in.

        Args:
            call: the request.
            answered: called once on the event loop with the answer or with what the worker
                refused, perhaps before this returns; never after `Ticket.cancel`.

        Raises:
            ServingError: whichever of the steps above refused it; `answered` is not called.
        """
        if self.draining:
            raise ShuttingDownError("this server is shutting down; send the request to another")
        if self._in_flight >= self._max_in_flight:
            raise TooManyInFlightError(
                f"{self._max_in_flight} requests are in flight here, the limit; "
                "retry later or add servers"
            )
        served, signature = self.directory.resolve(call.model, call.version)
        lane = served.lane
        known = self._known_of(signature)
        request = self._admit(call, lane, known)
        ticket = Ticket(self, answered, known, call.outputs)
        self._in_flight += 1
        self._idle.clear()
        ticket.entry = self._queue.submit(request, lambda outcome: ticket.finish(lane, outcome))
        return ticket

    def give_back_permit(self) -> None:
        """One request fewer is in flight."""
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    def _known_of(self, signature: Signature) -> _Known:
        known = self._known.get(id(signature))
        if known is None or known.signature is not signature:
            live = {id(s.signature) for s in self.directory.all_versions()}
            self._known = {key: k for key, k in self._known.items() if key in live}
            known = self._known[id(signature)] = _Known(signature)
        return known

    def _admit(self, call: InferCall, lane: Lane, known: _Known) -> InferRequest:
        """Checks a call against the signature and stamps its deadline."""
        rows, length = known.rows_of(call.inputs), None
        if call.outputs or not rows:
            rows, length = _check(call, lane, known.signature)
        timeout_s = self._timeout_s
        if call.timeout_s is not None and call.timeout_s < timeout_s:
            timeout_s = call.timeout_s
        return InferRequest(
            request_id=call.request_id,
            lane=lane,
            inputs={tensor.name: tensor.array for tensor in call.inputs},
            rows=rows,
            deadline=time.monotonic() + timeout_s,
            priority=call.priority or DEFAULT_PRIORITY,
            length=length,
        )


def _check(call: InferCall, lane: Lane, signature: Signature) -> tuple[int, int | None]:
    """Every rule of the signature. Returns the rows and, for a padded model, the length."""
    given = {tensor.name: (tensor.datatype, tensor.array.shape) for tensor in call.inputs}
    try:
        if len(given) != len(call.inputs):
            names = [tensor.name for tensor in call.inputs]
            raise SignatureError(f"an input occurs twice in {names}")
        rows = signature.check_inputs(given)
        signature.check_outputs(call.outputs)
    except SignatureError as error:
        raise InvalidRequestError(f"model {lane}: {error}") from error
    return rows, signature.length_of({name: shape for name, (_, shape) in given.items()})
