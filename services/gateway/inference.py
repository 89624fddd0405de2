"""The life of one inference, the same for every protocol.

In: a request that an edge has received. Out: its replies, to the edge's `ReplySink`; one line in
the accounting.

One inference, in order:
1. `InferencePath.open` records it, with the time at which its last byte came;
2. `begin` authenticates its caller, has the edge decode it, in slices if it is large, and hands it
   to admission, and its payload to the sampler;
   if its version made room for others, it waits until that is loaded again (`load_waits.py`);
3. replies come back: `ReplySink.part` encodes and writes them, in slices if they are large
   (`write`), and calls `answered` before it writes the last;
4. or an error ends it (`fail`), or its caller disconnects (`cancel`).

Rule: an inference has exactly one outcome, which is counted once; whatever comes after it changes
nothing.

A protocol is two files beside its table of routes: a codec, and an edge whose requests implement
`ReplySink` (`rest_infer.py`, `grpc_infer.py`).
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from services.errors import ModelReturningError, ServingError, SeveralAnswersError
from services.gateway.admission import Admission, InferCall, RoutedCall
from services.gateway.load_waits import LoadWait
from services.gateway.reply_sink import ReplySink
from services.gateway.request_accounting import RequestAccounting
from services.gateway.shared_regions.regions import RegionUse, SharedRegions
from services.gateway.sliced_work import Slices
from services.gateway.triton.classes import Classes, classes_of
from services.queueing.directory import LIVE_ALIAS
from services.queueing.memory_queue import Done, Entry, Outcome
from services.queueing.records import InferReply, Lane
from services.telemetry.loop_metrics import CounterChild, HistogramChild
from services.tracing.context import TraceContext
from services.tracing.tracer import EdgeFacts
from services.wire.body import Body

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization
    from services.access.caller import Caller

logger = logging.getLogger("flambeau.inference")

T = TypeVar("T")


def only_one(reply: InferReply) -> None:
    """Refuses what a call for one answer cannot give.

    Raises:
        SeveralAnswersError: the model has another number of answers.
    """
    if not reply.is_last or not reply.outputs:
        raise SeveralAnswersError(
            f"model {reply.lane} answers this request in several parts or in none, and this call "
            "takes exactly one answer"
        )


INTERNAL_ERROR = "internal error; see the server's log"


class Sampler(Protocol):
    """Samples payloads of requests."""

    def watch(self, call: InferCall, inference: "Inference", answered: Done) -> Done:
        """Returns a function that calls `answered`, and then samples the request."""


_NO_SINK = cast(ReplySink, None)
"""Sink of a finished inference: sink and inference refer to each other, and the cycle must not wait
for the garbage collector."""


class WireProtocol(NamedTuple):
    """Names of a protocol in the accounting."""

    name: str
    """Label of its metrics."""
    ok: str
    """Code of an answer."""
    code: Callable[[ServingError], str]
    """Code of an error."""


class InferencePath:
    """State that the inferences of one protocol share.

    Attributes:
        answered_lane: of the newest answer; None before the first.
        answers: counter and histogram of its answers, which are looked up once for many.
        regions: shared memory of callers; None where it is off.
        traffics: traffic by model, of those that share it among versions.
        open: begins an `Inference`: its sink, `time.monotonic()` of its last byte, the caller's id,
            model, version, and `traceparent`. Not a method: a call less for every request.
    """

    __slots__ = (
        "accounting", "admission", "answered_lane", "answers", "answers_of", "open", "protocol",
        "regions", "sampler", "traffics",
    )  # fmt: skip

    def __init__(
        self,
        protocol: WireProtocol,
        admission: Admission,
        accounting: RequestAccounting,
        sampler: Sampler | None = None,
        regions: SharedRegions | None = None,
    ) -> None:
        self.regions = regions
        self.protocol = protocol
        self.admission = admission
        self.traffics = admission.directory.traffics()
        self.accounting = accounting
        self.sampler = sampler
        self.open = functools.partial(Inference, self)
        self.answers_of = functools.partial(
            accounting.series, protocol=protocol.name, code=protocol.ok
        )
        self.answered_lane: Lane | None = None
        self.answers: tuple[CounterChild, HistogramChild] = cast(Any, None)


def region_use(path: InferencePath, caller: "Caller | None") -> RegionUse | None:
    """Returns the use of shared memory by a request; None where it is off."""
    if path.regions is None:
        return None
    return RegionUse(path.regions, caller.name if caller is not None else "")


class Inference:
    """One inference, from its last byte to the first of its last reply.

    Args:
        path: of its protocol.
        sink: writes its replies.
        received_at: `time.monotonic()` second of its last byte; deadlines count from here.
        given_id: the caller's; a printable one is invented when it gave none.
        model: as the caller wrote it.
        version: likewise.
        traceparent: the caller's trace (W3C Trace Context); empty for none.

    Attributes:
        ends_at: `time.monotonic()` second at which its caller's time is over, if its head says so.
        classes: classes that are wanted in place of outputs; None for none.
        is_over: True once it has its outcome.
        request_id: printable; goes into the log and the reply.
        trace: travels with the request if it is traced here.
        trace_id: in hex: of its trace, which may be one that only the caller records; empty for
            none.
    """

    __slots__ = (
        "_entry", "_path", "_routed", "_sink", "classes", "ends_at", "is_over", "model",
        "received_at", "request_id", "trace", "trace_id", "version",
    )  # fmt: skip

    def __init__(
        self,
        path: InferencePath,
        sink: ReplySink,
        received_at: float,
        given_id: str = "",
        model: str = "",
        version: str = "",
        traceparent: str = "",
    ) -> None:
        accounting = path.accounting
        self._path = path
        self._sink = sink
        self._entry: Entry | LoadWait | None = None
        self._routed: RoutedCall | None = None
        self.received_at = received_at
        self.ends_at = math.inf
        self.model = model
        self.version = version
        self.is_over = False
        self.classes: Classes | None = None
        self.request_id = accounting.safe_id(given_id) if given_id else accounting.new_id()
        self.trace: TraceContext | None = None
        self.trace_id = ""
        if accounting.tracer is not None:
            self.trace, self.trace_id = accounting.tracer.begin(traceparent)

    @property
    def protocol(self) -> WireProtocol:
        """The protocol it came by."""
        return self._path.protocol

    def rename(self, given_id: str) -> None:
        """Takes the id that the decoded request has."""
        self.request_id = self._path.accounting.safe_id(given_id)

    def classify(self, counts: Mapping[str, int]) -> None:
        """Notes that classes are wanted in place of outputs, by the signature of the model.

        Args:
            counts: number of classes by output, above 0.

        Raises:
            ServingError: the model is not ready, or an output has no numbers.
        """
        signature = self._path.admission.directory.resolve(self.model, self.version)[1]
        self.classes = classes_of(counts, signature)

    def begin(self, body: Body, authorization: "CachedAuthorization | None") -> None:
        """Authenticates the caller, decodes the request and hands it to admission.

        Args:
            body: of the request, not compressed.
            authorization: of its credential; None where nobody needs one.
        """
        caller = None
        if authorization is not None:
            try:
                caller = authorization.caller(self.model)
            except ServingError as error:
                self.fail(error)
                return
        self._decode(body, caller)

    def _decode(self, body: Body, caller: "Caller | None") -> None:
        """Has the edge decode the request, and hands it to admission."""
        try:
            call = self._sink.decode(body, caller)
            if isinstance(call, InferCall):
                self._admit(call)
            else:
                self._decode_in_slices(call, len(body))
        except ModelReturningError as error:
            self._wait(error, self.ends_at, functools.partial(self._decode, body, caller))
        except Exception as error:
            self._fail_decoding(error)

    def _decode_in_slices(self, slices: Slices[InferCall], size: int) -> None:
        admission = self._path.admission
        try:
            admission.directory.resolve(self.model, self.version)
        except ModelReturningError as error:
            again = functools.partial(self._decode_in_slices, slices, size)
            self._wait(error, self.ends_at, again)
            return
        except ServingError:
            pass  # the decoder may find another fault first
        admission.work.begin(slices, self._admit, self._fail_decoding, self._is_over, size)

    def _wait(self, error: ModelReturningError, deadline: float, again: Callable[[], None]) -> None:
        """Waits for a version that is loaded again; fails with the error if there is no time."""
        admission = self._path.admission
        lane = admission.directory.served_lane(self.model, self.version)
        deadline = min(deadline, self.received_at + admission.request_timeout_s)
        late = functools.partial(self.fail, error)
        waits = admission.load_waits
        wait = None if lane is None else waits.add(lane, deadline, again, late)
        if wait is None:
            late()
        else:
            self._entry = wait

    def _is_over(self) -> bool:
        return self.is_over

    def _admit(self, call: InferCall) -> None:
        """Hands the decoded request to admission."""
        path = self._path
        answered: Done = self._replied
        sampler, counts = path.sampler, path.admission.callers
        names_live = not call.version or call.version == LIVE_ALIAS
        try:
            if path.traffics:
                call = self._route(call)
            if sampler is not None:
                answered = sampler.watch(call, self, answered)
            if (routed := self._routed) is not None:
                answered = routed.watched(answered)
            entry = path.admission.infer(call, answered)
            if routed is not None:
                routed.admitted()
            if counts is not None and names_live:
                caller, now = call.caller, self.received_at
                if counts.is_due(call.model, "" if caller is None else caller.name, now):
                    path.admission.look_at(call, counts, now)
        except ModelReturningError as error:
            self._wait(error, call.deadline, functools.partial(self._admit, call))
        except Exception as error:
            self.fail_by(error)
        else:
            if not self.is_over:
                self._entry = entry

    def _route(self, call: InferCall) -> InferCall:
        """Returns the call with the version that is drawn for it, if its model shares traffic."""
        path = self._path
        traffic, router = path.traffics.get(call.model), path.admission.router
        if traffic is None or router is None:
            return call
        try:
            routed = self._routed = router.route(call, traffic, self._sink.key)
        except ServingError:
            raise
        except Exception:  # the live version answers all the same
            if path.accounting.may_log_failure(time.monotonic()):
                logger.exception("a request was not drawn", extra={"model": call.model[:128]})
            return call
        if routed is None:
            return call
        call = routed.call
        if call.version != self.version:
            self.version = call.version  # what fails from now on counts for it
            if self.classes is not None:
                counts = {name: wanted.most for name, wanted in self.classes.items()}
                self.classify(counts)
        return call

    def write(self, slices: Slices[T], reply: InferReply, then: Callable[[T], None]) -> None:
        """Encodes a large reply, the only one of its request, in slices; `then` writes it.

        Slices of several replies would overtake one another.

        Raises:
            TooManyInFlightError: too many others are being encoded.
        """
        self._sink.release()
        failed = functools.partial(self.fail_by, lane=reply.lane)
        self._path.admission.work.begin(slices, then, failed, self._is_over)

    def _replied(self, outcome: Outcome) -> None:
        """A reply or an error of the queue, on the event loop, among those of the same batch."""
        if self.is_over:
            return
        if isinstance(outcome, ServingError):
            self._entry = None
            self.fail(outcome)
            return
        try:
            if outcome.is_last:
                self._entry = None  # it holds us, and nothing is to wait for the garbage collector
                if not outcome.outputs:
                    self._sink.end(outcome)
                    return
            self._sink.part(outcome)
        except ServingError as error:
            self.fail(error, outcome.lane)
        except Exception as error:
            self.fail_by(error)

    def answered(self, reply: InferReply) -> None:
        """Counts, times and, if asked to, logs the answer that is about to be written."""
        self.is_over = True
        if self._routed is not None:
            self._routed.written()
        self._sink, self._routed = _NO_SINK, None  # cycles, too
        path = self._path
        accounting, lane = path.accounting, reply.lane
        seconds = time.monotonic() - self.received_at
        trace = self.trace
        if lane is not path.answered_lane:
            path.answered_lane, path.answers = lane, path.answers_of(lane)
        counter, histogram = path.answers
        counter.value += 1
        histogram.observe(seconds, self.trace_id if trace else "")
        if trace is not None:
            self._end_trace(trace, path.protocol.ok, str(lane.version))
        if accounting.access_log:
            facts = self._facts(path.protocol.ok, seconds, str(lane.version))
            accounting.log_answer({**facts, "batch_rows": reply.batch_rows})

    def fail(self, error: ServingError, lane: Lane | None = None) -> None:
        """Counts an error and answers with it.

        Args:
            error: why there is no reply.
            lane: the version that answered, when its answer could not be written.
        """
        if not self.is_over:
            if lane is not None and self._routed is not None:
                self._routed.unwritable(error)
            sink, words = self._sink, self._path.admission.error_words
            if words is not None:
                error = words(error, self.model, self._path.protocol.name)
            self._leave_queue()
            self._count_failed(self._path.protocol.code(error), error, lane)
            sink.fail(error)

    def fail_by(self, error: Exception, lane: Lane | None = None) -> None:
        """The same; an error that is no `ServingError` is our own fault, and logged.

        The other requests of its batch still get their answers.
        """
        if not isinstance(error, ServingError):
            logger.error("inference failed", exc_info=error)
            error, lane = ServingError(INTERNAL_ERROR), None
        self.fail(error, lane)

    def _fail_decoding(self, error: Exception) -> None:
        """The same for a request that could not be decoded; an unknown model is named first."""
        if isinstance(error, ServingError) and not self.is_over:
            try:
                self._path.admission.directory.resolve(self.model, self.version)
            except ServingError as unknown:
                error = unknown
        self.fail_by(error)

    def cancel(self, code: str, error: ServingError) -> None:
        """Drops the request, because its caller has disconnected; counts it under a code."""
        if not self.is_over:
            self._leave_queue()
            if self._routed is not None:
                self._routed.left()
            self._count_failed(code, error, None)

    def _leave_queue(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()

    def _count_failed(self, code: str, error: ServingError, lane: Lane | None) -> None:
        """Counts, times and logs a request that was not answered with outputs."""
        self.is_over = True
        self._sink, self._routed = _NO_SINK, None
        accounting = self._path.accounting
        # The version that the request names; a caller must not invent values of labels.
        lane = lane or accounting.directory.served_lane(self.model, self.version)
        now = time.monotonic()
        seconds = now - self.received_at
        trace_id = self.trace_id if self.trace else ""
        accounting.count_failed(lane, self._path.protocol.name, code, seconds, error, trace_id)
        version = str(lane.version) if lane else self.version[:32]
        if self.trace is not None:
            self._end_trace(self.trace, code, version, type(error).__name__)
        if accounting.may_log_failure(now):
            accounting.log_failure({**self._facts(code, seconds, version), "error": str(error)})

    def _end_trace(self, trace: TraceContext, code: str, version: str, error: str = "") -> None:
        tracer = self._path.accounting.tracer
        assert tracer is not None
        tracer.keep(
            EdgeFacts(
                trace=trace,
                protocol=self._path.protocol.name,
                model=self.model[:128],
                version=version,
                code=code,
                error=error,
                request_id=self.request_id,
                ended_ns=time.time_ns(),
            )
        )

    def _facts(self, code: str, seconds: float, version: str) -> dict[str, object]:
        trace = {"trace_id": self.trace_id} if self.trace_id else {}
        return {
            **trace,
            "request_id": self.request_id,
            "protocol": self._path.protocol.name,
            "model": self.model[:128],
            "version": version,
            "code": code,
            "duration_ms": round(seconds * 1000, 3),
        }
