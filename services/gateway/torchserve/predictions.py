"""Predictions and explanations of TorchServe's API, whatever the protocol.

In: requests to handlers, as an edge has decoded them. Out: calls of the common request path, and
answers of handlers; or a `RefusedError` in TorchServe's words.

An edge of this door is a `ReplySink`, as every edge is: it opens an inference on `Predictions.path`
with the model and version of `target`, has `begin` start it, answers `decode` with `call`, and
reads each reply with `answer`.

Rules: an unknown model is refused before its body is decoded; a failure of a handler is an error
with the code and words that the handler's process gave.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from flambeau.protocol.tensors import object_array
from model_store.archives.handler_calls import (
    REQUEST,
    RESPONSE,
    HandlerAnswer,
    HandlerCallError,
    HandlerRequest,
    decode_answer,
    element_of,
    head_of,
)
from model_store.archives.registrations import RegisteredVersion, Registrations
from services.errors import (
    BackendError,
    ModelNotReadyError,
    ModelReturningError,
    NotFoundError,
    QueueFullError,
    SequenceLostError,
    ServingError,
)
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.inference import Inference, InferencePath, Sampler, WireProtocol
from services.gateway.request_accounting import RequestAccounting
from services.gateway.sequence_parameters import MAX_ID_BYTES
from services.gateway.torchserve.archive_registry import target
from services.gateway.torchserve.loading_requests import LoadingRequests
from services.gateway.torchserve.refusals import (
    INTERNAL,
    Refusal,
    RefusedError,
    bad_request,
    code_of,
    model_not_found,
    no_worker,
    refusal_of,
    version_not_found,
)
from services.queueing.records import InferReply, SequenceStep
from services.telemetry.torchserve_metrics import RequestSeries, TorchServeMetrics
from services.wire.body import Body

if TYPE_CHECKING:
    from services.access.caller import Caller

EXPLAIN = "explain"
DESCRIBE = "describe"
"""Headers, `True` or `False`, that tell a handler what is asked for."""
SEQUENCE, SEQUENCE_START = "ts_request_sequence_id", "ts_request_sequence_start"
"""Headers with the sequence of a request, and with `true` where TorchServe chose its id."""
_OUT_OF_MEMORY = 413
"""Code of a handler's process that TorchServe sends on as 507."""

_PREDICTION_TIME = "PredictionTime"
"""What a handler's process measures of its batch, in ms."""


class Predictions:
    """The calls of handlers, for one protocol.

    Args:
        name: name of the protocol in the accounting.
        ok: code of an answer there.
        admission: admits the requests.
        accounting: counts them.
        registered: returns the registrations, at once.
        sampler: samples payloads, if configured.
        figures: metrics under TorchServe's names.

    Attributes:
        path: path of the inferences.
    """

    def __init__(
        self,
        name: str,
        ok: str,
        admission: Admission,
        accounting: RequestAccounting,
        registered: Callable[[], Registrations],
        sampler: Sampler | None = None,
        figures: TorchServeMetrics | None = None,
    ) -> None:
        protocol = WireProtocol(name, ok, code_of)
        self.path = InferencePath(protocol, admission, accounting, sampler)
        self._directory = admission.directory
        self._registered = registered
        self._figures = figures
        self._loading = LoadingRequests(self._directory, self.registration, self.begin)
        self._series: dict[tuple[str, str], RequestSeries] = {}
        self._timeouts: tuple[int, dict[tuple[str, str], float]] = (-1, {})
        self._at_start: tuple[Registrations | None, str] = None, ""

    def only_at_start(self) -> str:
        """Returns the model of calls that name none: the only one that was registered at the start.

        It is empty if there is none, or if there are several.

        Raises:
            BackendError: the registrations cannot be read.
        """
        registered = self._registered()
        known, name = self._at_start
        if known is not registered:
            names = [
                name
                for name, model in registered.models.items()
                if any(one.at_start for one in model.versions.values())
            ]
            name = names[0] if len(names) == 1 else ""
            self._at_start = registered, name
        return name

    def begin(self, inference: Inference, body: Body, version: str) -> None:
        """Starts an inference, at once or when its first workers have; or refuses it.

        Args:
            inference: opened for the model and version of `target`.
            body: of the request.
            version: TorchServe's version, as the caller named it; empty for the default one.
        """
        try:
            self._directory.resolve(inference.model, inference.version)
        except ModelReturningError:
            pass  # it waits for the model
        except ServingError as error:
            try:
                waits = self._loading.take(inference, body, version)
            except ServingError:  # the registrations cannot be read
                waits = False
            if not waits:
                inference.fail(self.refused(error, inference.model, version))
            return
        if self._figures is not None:
            self._series_of(self._figures, inference.model, version).requests.value += 1
        inference.begin(body, None)

    def leave(self) -> None:
        """Refuses what waits for workers: the server is about to leave."""
        self._loading.close()

    def answered(self, inference: Inference, reply: InferReply, version: str) -> None:
        """Accounts for the answer that is about to be written, the last one.

        Args:
            inference: of the request.
            reply: the last one.
            version: as for `begin`.
        """
        inference.answered(reply)
        figures = self._figures
        if figures is not None:
            series = self._series_of(figures, inference.model, version)
            series.latency_us.value += (time.monotonic() - inference.received_at) * 1e6
            series.queue_us.value += reply.queue_s * 1e6
            figures.queue_ms.value = int(reply.queue_s * 1e3)

    def responded(self, status: int) -> None:
        """Counts a response over HTTP."""
        if self._figures is not None:
            self._figures.responded(status)

    def _series_of(self, figures: TorchServeMetrics, model: str, version: str) -> RequestSeries:
        """Returns the counters of a registered version, as callers name it."""
        found = self._series.get((model, version))
        if found is None:
            found = self._series[model, version] = figures.of(model, version)
        return found

    def call(
        self,
        inference: Inference,
        request: HandlerRequest,
        caller: "Caller | None" = None,
        head: bytes = b"",
    ) -> InferCall:
        """Returns the call of a request.

        Args:
            inference: of the request.
            request: to the handler.
            caller: who is authenticated.
            head: that of the request, if it is known from one before.

        Raises:
            RefusedError: its names and headers, or its sequence's id, are too large.
            ServingError: the version is served no longer.
        """
        _, signature = self._directory.resolve(inference.model, inference.version)
        step = None
        if signature.sequence is not None:
            request, step = step_of(request)
            head = b""
        data = [part.data for part in request.parts]
        element = element_of(head or checked_head(request), request.id, data)
        return InferCall(
            request_id=inference.request_id,
            model=inference.model,
            version=inference.version,
            inputs=(InputTensor(name=REQUEST, datatype="BYTES", array=object_array([element])),),
            deadline=inference.received_at + self._timeout_s(inference.model, inference.version),
            sequence=step,
            trace=inference.trace,
            caller=caller,
        )

    def answer(self, reply: InferReply) -> HandlerAnswer:
        """Returns the answer in a reply, one of several if the handler gives it in parts.

        Raises:
            RefusedError: the handler failed.
            BackendError: its process gave no answer.
        """
        try:
            answer = decode_answer(reply.outputs[RESPONSE].item(0))
        except (HandlerCallError, KeyError) as error:
            raise BackendError(f"the process of {reply.lane} gave no answer: {error}") from error
        if (answer.measurements or answer.dropped) and self._figures is not None:
            self._figures.measured(answer.measurements, answer.dropped)
            for one in answer.measurements:
                if one.name == _PREDICTION_TIME:
                    beside_ms = reply.execution_s * 1e3 - one.value
                    self._figures.thread_ms.value = max(0, int(beside_ms))
        if answer.failure:
            code = 507 if answer.status == _OUT_OF_MEMORY else answer.status
            raise RefusedError(Refusal(code, INTERNAL, answer.failure))
        return answer

    def refused(self, error: ServingError, model: str, version: str) -> RefusedError:
        """Returns an error in TorchServe's words.

        Args:
            error: why there is no answer.
            model: name of the model.
            version: TorchServe's version, as the caller named it; empty for the default one.
        """
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, QueueFullError | SequenceLostError):
            return no_worker(model, version)
        if isinstance(error, NotFoundError | ModelNotReadyError):
            try:
                known = self._registered().models.get(model)
            except ServingError as unread:
                return RefusedError(refusal_of(unread))
            if known is None:
                return model_not_found(model)
            if version and version not in known.versions:
                return version_not_found(model, version)
            return no_worker(model, version)
        return RefusedError(refusal_of(error))

    async def ask(self, model: str, version: str, request: HandlerRequest) -> HandlerAnswer:
        """Returns the only or last answer to a request that the server makes itself.

        Raises:
            RefusedError: the model cannot answer, or the handler failed.
        """
        sink = _AwaitedAnswer(self, request)
        named, alias = target(model, version)
        inference = sink.inference = self.path.open(
            sink, time.monotonic(), request.id, named, alias
        )
        try:
            self.begin(inference, b"", version)
            return await sink.outcome
        except ServingError as error:
            raise self.refused(error, model, version) from error
        finally:
            inference.cancel("499", ServingError("the caller has disconnected"))

    def registration(self, model: str, version: str) -> RegisteredVersion | None:
        """Returns a registered version, the default one if none is named; None for none."""
        known = self._registered().models.get(model)
        return None if known is None else known.versions.get(version or known.default)

    def _timeout_s(self, model: str, alias: str) -> float:
        """Returns the time that callers of a version wait, as its archive says; else infinite."""
        changes, timeouts = self._timeouts
        if changes != self._directory.changes:
            changes, timeouts = self._timeouts = self._directory.changes, {}
            for name, known in self._registered().models.items():
                for version, one in known.versions.items():
                    if one.client_timeout_ms:
                        timeouts[target(name, version)] = one.client_timeout_ms / 1000
                        if version == known.default:
                            timeouts[target(name)] = one.client_timeout_ms / 1000
        return timeouts.get((model, alias), math.inf)


def checked_head(request: HandlerRequest) -> bytes:
    """Returns the head of a request; see `handler_calls.head_of`.

    Raises:
        RefusedError: it is too large.
    """
    try:
        return head_of(request)
    except HandlerCallError as error:
        raise bad_request(f"the request is too large: {error}") from error


def step_of(request: HandlerRequest) -> tuple[HandlerRequest, SequenceStep]:
    """Returns a request to a handler with state, and its step of a sequence.

    A request that names no sequence begins one, which gets an id, as with TorchServe.

    Raises:
        RefusedError: the id is too long.
    """
    name = request.headers.get(SEQUENCE, "")
    if not name:
        name = f"ts-seq-{uuid.uuid4()}"
        headers = {**request.headers, SEQUENCE: name, SEQUENCE_START: "true"}
        is_described = DESCRIBE in request.headers  # a sequence of its own
        return replace(request, headers=headers), SequenceStep(
            name, is_start=True, is_end=is_described
        )
    if len(name.encode("utf-8", "replace")) > MAX_ID_BYTES:
        raise bad_request(
            f"{SEQUENCE} begins with {name[:60]!r} and has over {MAX_ID_BYTES} bytes; choose a "
            "shorter id"
        )
    return request, SequenceStep(name, may_start=True)


class _AwaitedAnswer:
    """The end of an inference that a coroutine awaits."""

    def __init__(self, predictions: Predictions, request: HandlerRequest) -> None:
        self._predictions, self._request = predictions, request
        self._last = HandlerAnswer()
        self.inference: Inference | None = None
        self.outcome: asyncio.Future[HandlerAnswer] = asyncio.get_running_loop().create_future()

    def decode(self, body: Body, caller: "Caller | None") -> InferCall:
        """Returns the call of the request."""
        assert self.inference is not None
        return self._predictions.call(self.inference, self._request, caller)

    def part(self, reply: InferReply) -> None:
        """Keeps an answer, and returns the last one."""
        self._last = self._predictions.answer(reply)
        if reply.is_last:
            self.end(reply)
        else:
            assert reply.window is not None
            reply.window.take()

    def end(self, reply: InferReply) -> None:
        """Returns the last answer."""
        assert self.inference is not None
        self.inference.answered(reply)
        if not self.outcome.done():
            self.outcome.set_result(self._last)

    def fail(self, error: ServingError) -> None:
        """Raises an error where the answer is awaited."""
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def release(self) -> None:
        """Nothing was charged."""

    def key(self, source: str, name: str) -> str:
        """Returns nothing: no caller has sent the request."""
        return ""
