"""Admission: decides whether a decoded request is let in, and waits for its reply.

In: an `InferCall`, the same whichever edge decoded it. Out: an `InferAnswer`, or a `ServingError`.

One request, in order:
1. the gateway must not be draining, and have a permit left (`max_in_flight_requests`);
2. the model name and version are resolved to a lane that is ready;
3. names, datatypes, shapes and the batch size are checked against the signature;
4. the deadline is stamped: the caller's, but never later than `request_timeout_s`;
5. the request is enqueued, and the reply awaited.

Rules kept here: nothing awaits between 2 and 5, so the lane cannot go away in between; a permit
is given back whatever happens.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model_store.signature import Signature, SignatureError
from model_store.tensors import Array
from services.errors import InvalidRequestError, ShuttingDownError, TooManyInFlightError
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import InferReply, InferRequest, Lane, ServedVersion
from services.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTensor:
    """One decoded input."""

    name: str
    datatype: str
    array: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class InferCall:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InferAnswer:
    """What an edge encodes."""

    lane: Lane
    outputs: Mapping[str, Array]
    """In the order asked for, or the signature's."""
    datatypes: Mapping[str, str]
    reply: InferReply


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
        self._gauge = metrics.in_flight
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

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

    async def infer(self, call: InferCall) -> InferAnswer:
        """Runs one request.

        Raises:
            ServingError: whichever of the steps above refused it, or what the worker answered.
        """
        self._take_permit()
        try:
            served, signature = self.directory.resolve(call.model, call.version)
            request = self._admit(call, served, signature)
            reply = await self._queue.submit(request)
        finally:
            self._give_back_permit()
        datatypes = {spec.name: spec.datatype for spec in signature.outputs}
        names = call.outputs or list(datatypes)
        outputs = {name: reply.outputs[name] for name in names}
        return InferAnswer(lane=served.lane, outputs=outputs, datatypes=datatypes, reply=reply)

    def _take_permit(self) -> None:
        if self.draining:
            raise ShuttingDownError("this server is shutting down; send the request to another")
        if self._in_flight >= self._max_in_flight:
            raise TooManyInFlightError(
                f"{self._max_in_flight} requests are in flight here, the limit; "
                "retry later or add servers"
            )
        self._in_flight += 1
        self._idle.clear()
        self._gauge.inc()

    def _give_back_permit(self) -> None:
        self._in_flight -= 1
        self._gauge.dec()
        if not self._in_flight:
            self._idle.set()

    def _admit(self, call: InferCall, served: ServedVersion, signature: Signature) -> InferRequest:
        """Checks a call against the signature and stamps its deadline."""
        given = {tensor.name: tensor for tensor in call.inputs}
        try:
            if len(given) != len(call.inputs):
                names = [tensor.name for tensor in call.inputs]
                raise SignatureError(f"an input occurs twice in {names}")
            rows = signature.check_inputs(
                {name: (tensor.datatype, tensor.array.shape) for name, tensor in given.items()}
            )
            signature.check_outputs(call.outputs)
        except SignatureError as error:
            raise InvalidRequestError(f"model {served.lane}: {error}") from error
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return InferRequest(
            request_id=call.request_id,
            lane=served.lane,
            inputs={spec.name: given[spec.name].array for spec in signature.inputs},
            rows=rows,
            deadline=time.monotonic() + min(timeout_s, self._timeout_s),
        )
