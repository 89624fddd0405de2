"""Repeats answered requests at a candidate version, and compares both answers.

In: a request whose caller has its answer, and the answer. Out: a `Pair` to each that asked for it.

Rules:
- requests of `GATHER_S` are sent together, so that they share a batch, and only while the event
  loop is idle and no caller's request waits for either version, as far as this process knows; they
  wait for that for `HELD_S`, and small answers for being compared.
  The worker, which knows of all processes, refuses them while requests wait or keep them from
  running. They run in idle slots of the device, and take no caller's permit or queue;
- together they take `PART_OF_IDLE` of the loop's idle time; further ones are dropped;
- at most `MOST_IN_FLIGHT` and `MOST_IN_FLIGHT_BYTES` are in flight; further ones are dropped;
- a request that its candidate does not answer within `WITHIN_S` failed there;
- steps of sequences and streams of answers are not mirrored: they are dropped whole;
- a fault here reaches no caller; large answers are compared in a thread of low priority.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from flambeau.protocol.tensors import Array
from services.errors import BackendError, DeadlineExceededError, DisplacedError, ServingError
from services.gateway.admission import Admission, InferCall
from services.gateway.traffic.answer_comparison import Judged, Task, bf16_of, compared
from services.gateway.traffic.idle_moment import IdleMoment, IdleShare
from services.gateway.traffic.shown_tensors import Redacts, shown
from services.low_priority_thread import STEPS_BELOW_LOOP, lower_priority
from services.queueing.memory_queue import Entry, MemoryQueue, Outcome
from services.queueing.records import MIRROR_PRIORITY, InferReply, InferRequest, Lane
from services.rollouts.shadow_figures import AGREES_BELOW, KeptPair
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.mirrors")

MOST_IN_FLIGHT = 32
"""A batch of idle slots; more would delay the next caller's request for longer."""
MOST_IN_FLIGHT_BYTES = 32 * 2**20
"""Inputs and answers of those in flight; the edge's own budget no longer counts them."""
GATHER_S = 0.025
"""A run of 1 or of 15 small requests delays callers for the same time."""
HELD_S = 0.1
AGAIN_S = 0.001
"""Time until the next look whether callers' requests wait."""
FEW_TENSORS, FEW_ELEMENTS = 8, 128
"""Numbers of inputs and answers of a pair that the event loop compares: a hand-over to the thread
takes longer, and the thread would keep the interpreter lock meanwhile."""
COMPARED_S = 0.0002
"""Time of one idle moment for that: a batch answers many at once."""
PART_OF_IDLE = 0.05
"""Part of the loop's idle time that mirrored requests may take."""
PIECE_S = 50e-6
"""Time of the event loop for a mirrored request of a small model: 35 to 60 µs."""
MOST_TEXTS = 4096
"""BYTES elements of a request that is mirrored: they are counted one by one."""
WITHIN_S = 30.0
"""Time for an answer of a candidate. A worker refuses what has not begun to run much sooner."""


class Pair(NamedTuple):
    """The answers of both versions to one request."""

    judged: Judged
    live_s: float
    candidate_s: float | None
    """Seconds of the candidate's run; None if it failed."""
    kept: KeptPair


class Target(NamedTuple):
    """A candidate, and what asked for the pair."""

    version: int
    task: Task
    shows: bool
    """True if the pair may be kept to look at."""
    take: Callable[[Pair], None]
    """Called on the event loop with the pair."""
    drop: Callable[[str], None]
    """Called on the event loop with the reason if there is none."""


class _InFlight:
    """A mirrored request. Its live answer is kept until both are compared."""

    __slots__ = ("call", "entry", "is_sent", "nbytes", "reply", "request", "target", "until")

    def __init__(
        self,
        target: Target,
        call: InferCall,
        reply: InferReply,
        request: InferRequest,
        nbytes: int,
    ) -> None:
        self.target, self.call, self.reply = target, call, reply
        self.request = request
        self.nbytes = nbytes
        self.until = time.monotonic() + HELD_S
        self.is_sent = False
        self.entry: Entry | None = None

    @property
    def name(self) -> tuple[str, str]:
        """Model and candidate."""
        return self.call.model, str(self.target.version)


class Mirrors:
    """The mirrored requests of one process.

    Args:
        admission: checks them as others.
        queue: queue that they go to.
        metrics: counts pairs, and what was dropped.
        redacts: says which values of pairs must not be kept.
    """

    def __init__(
        self,
        admission: Admission,
        queue: MemoryQueue,
        metrics: Metrics,
        redacts: Redacts = lambda _model, _tensor, _datatype: False,
    ) -> None:
        self._admission, self._queue, self._metrics = admission, queue, metrics
        self._redacts = redacts
        self._share = IdleShare(PART_OF_IDLE, PIECE_S, MOST_IN_FLIGHT)
        self._idle = IdleMoment(lambda: queue.unanswered - admission.mirrored)
        self._in_flight: set[_InFlight] = set()
        self._gathered: list[_InFlight] = []
        """Those that are not sent yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._few: deque[tuple[_InFlight, Outcome]] = deque()
        """Small answers to be compared, in the next idle moments."""
        self._many: list[tuple[_InFlight, Outcome]] = []
        """Large ones, for the thread."""
        self._bytes = 0
        self._thread: ThreadPoolExecutor | None = None

    def offer(self, target: Target, call: InferCall, reply: InferReply) -> None:
        """Mirrors a request that was answered, or counts why not. Raises nothing."""
        try:
            reason = self._begin(target, call, reply)
        except ServingError:
            reason = "not_ready"
        except Exception:
            logger.exception("a request could not be mirrored")
            reason = "internal"
        if reason:
            self.drop(target, call.model, reason)

    def drop(self, target: Target, model: str, reason: str) -> None:
        """Counts a request that is not mirrored."""
        self._metrics.dropped_mirrors.labels(model, str(target.version), reason).inc()
        target.drop(reason)

    def abandon(self) -> None:
        """Drops all that are in flight: the process drains."""
        for one in list(self._in_flight):
            if one.entry is not None:
                one.entry.cancel()
            self._over(one)
        self._gathered.clear()

    def _begin(self, target: Target, call: InferCall, reply: InferReply) -> str:
        """Takes one, to be sent with others; returns the reason if it was dropped.

        Raises:
            ServingError: the candidate is not ready, or does not take the request.
        """
        if call.sequence is not None:
            return "sequence"
        if self._admission.draining:
            return "not_ready"
        if len(self._in_flight) >= MOST_IN_FLIGHT:
            return "in_flight"
        nbytes = _bytes_of([tensor.array for tensor in call.inputs])
        nbytes += _bytes_of(reply.outputs.values())
        if nbytes > MOST_IN_FLIGHT_BYTES:
            return "too_large"
        if self._bytes + nbytes > MOST_IN_FLIGHT_BYTES:
            return "in_flight"
        if not self._share.take():
            return "busy"
        named = msgspec.structs.replace(call, version=str(target.version), caller=None)
        one = _InFlight(target, call, reply, self._admission.checked(named), nbytes)
        self._in_flight.add(one)
        self._bytes += nbytes
        self._gathered.append(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._send)
        return ""

    def _send(self) -> None:
        """Submits what was gathered in an idle moment, if one comes soon."""
        self._timer = None
        if self._admission.draining:
            self.abandon()
        elif self._gathered:
            self._idle.ask(self._gathered[0].until, self._send_now)

    def _send_now(self, is_idle: bool) -> None:
        """Submits what no caller's request keeps from it; drops what has waited for long."""
        gathered, self._gathered, now = self._gathered, [], time.monotonic()
        lanes = {lane for one in gathered for lane in (one.reply.lane, one.request.lane)}
        busy = {lane for lane in lanes if not is_idle or self._waits(lane)}
        for one in gathered:
            if busy.isdisjoint((one.reply.lane, one.request.lane)):
                self._submit(one, now)
            elif now < one.until:
                self._gathered.append(one)
            else:
                self._over(one)
                self.drop(one.target, one.call.model, "busy")
        if self._gathered and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._send)

    def _submit(self, one: _InFlight, now: float) -> None:
        request = msgspec.structs.replace(
            one.request, deadline=now + WITHIN_S, priority=MIRROR_PRIORITY
        )
        one.is_sent = True
        self._admission.mirrored += 1
        try:
            one.entry = self._queue.submit(request, partial(self._answered, one), None, now)
        except Exception:
            logger.exception("a request could not be mirrored")
            self._over(one)
            self.drop(one.target, one.call.model, "internal")
            return
        if one not in self._in_flight:  # it was answered at once, perhaps with a part
            one.entry.cancel()

    def _waits(self, lane: Lane) -> bool:
        """Returns True if a caller's request waits for a lane of this process."""
        intake = self._queue.with_room(lane)
        return intake is None or intake.waiting > 0

    def _over(self, one: _InFlight) -> None:
        if one in self._in_flight:
            self._in_flight.discard(one)
            self._bytes -= one.nbytes
            self._no_longer_queued(one)

    def _no_longer_queued(self, one: _InFlight) -> None:
        self._admission.mirrored -= one.is_sent
        one.is_sent = False

    def _answered(self, one: _InFlight, outcome: Outcome) -> None:
        """Handles an outcome of the candidate, on the event loop."""
        if one not in self._in_flight:
            return
        self._no_longer_queued(one)
        reason = ""
        if isinstance(outcome, DisplacedError):
            reason = "busy"
        elif isinstance(outcome, ServingError) and not isinstance(
            outcome, BackendError | DeadlineExceededError
        ):
            reason = "refused"
        elif isinstance(outcome, InferReply) and (not outcome.is_last or not outcome.outputs):
            reason = "stream"
            if one.entry is not None:
                one.entry.cancel()
        elif isinstance(outcome, InferReply):
            reason = self._why_too_large(one, _bytes_of(outcome.outputs.values()))
        if reason:
            self._over(one)
            self.drop(one.target, one.call.model, reason)
            return
        if not _is_small(one, outcome):
            if not self._many:
                asyncio.get_running_loop().call_soon(self._compare_apart)
            self._many.append((one, outcome))
            return
        if not self._few:
            self._await_moment()
        self._few.append((one, outcome))

    def _compare_apart(self) -> None:
        """Hands large answers to the thread."""
        loop = asyncio.get_running_loop()
        answers, self._many = self._many, []
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "mirrors", lower_priority, (STEPS_BELOW_LOOP,))
        work = loop.run_in_executor(self._thread, _pairs, answers, self._redacts)
        work.add_done_callback(partial(self._compared_all, [one for one, _ in answers]))

    def _await_moment(self) -> None:
        """Has small answers compared in the next idle moment, or after `HELD_S`."""
        self._idle.ask(time.monotonic() + HELD_S, self._compare)

    def _compare(self, _is_idle: bool) -> None:
        """Compares small answers for a moment."""
        ends = time.monotonic() + COMPARED_S
        while self._few:
            answer = self._few.popleft()
            self._compared([answer[0]], _pairs([answer], self._redacts))
            if time.monotonic() >= ends:
                break
        if self._few:
            self._await_moment()

    def _compared_all(
        self, mirrored: list[_InFlight], work: "asyncio.Future[list[Pair | Exception]]"
    ) -> None:
        if not work.cancelled():  # else the process ends
            self._compared(mirrored, work.result())

    def _why_too_large(self, one: _InFlight, nbytes: int) -> str:
        """Counts the candidate's answer beside the live one; returns why it is not compared."""
        if one.nbytes + nbytes > MOST_IN_FLIGHT_BYTES:
            return "too_large"
        if self._bytes + nbytes > MOST_IN_FLIGHT_BYTES:
            return "in_flight"
        one.nbytes += nbytes
        self._bytes += nbytes
        return ""

    def _compared(self, mirrored: list[_InFlight], pairs: "list[Pair | Exception]") -> None:
        for one, pair in zip(mirrored, pairs, strict=True):
            self._over(one)
            if isinstance(pair, Exception):
                logger.error("answers could not be compared", exc_info=pair)
                self.drop(one.target, one.call.model, "internal")
                continue
            agrees = pair.judged.disagreement < AGREES_BELOW
            result = "failed" if pair.candidate_s is None else "agreed" if agrees else "differed"
            self._metrics.mirrored_pairs.labels(*one.name, result).inc()
            one.target.take(pair)


def _pairs(answers: list[tuple[_InFlight, Outcome]], redacts: Redacts) -> "list[Pair | Exception]":
    """Compares answers; a fault of one is returned in its place."""
    found: list[Pair | Exception] = []
    for one, outcome in answers:
        try:
            found.append(_pair(one.target, one.call, one.reply, outcome, redacts))
        except Exception as error:
            found.append(error)
    return found


def _pair(
    target: Target,
    call: InferCall,
    live: InferReply,
    outcome: Outcome,
    redacts: Redacts,
) -> Pair:
    """Compares both answers."""
    candidate_s: float | None = None
    judged, error = Judged(1.0, 0.0, False), ""
    if isinstance(outcome, InferReply):
        candidate_s = outcome.execution_s
        judged = compared(
            live.outputs, outcome.outputs, target.task, bf16_of(live), bf16_of(outcome)
        )
    else:
        error = f"{type(outcome).__name__}: {outcome}"
    show = partial(shown, call.model, redacts=redacts)
    is_shown = target.shows and judged.disagreement >= AGREES_BELOW
    kept = KeptPair(
        disagreement=judged.disagreement,
        difference=judged.difference,
        request_id=call.request_id,
        when=time.time(),
        inputs=show([(x.name, x.datatype, x.array) for x in call.inputs]) if is_shown else [],
        live=show(_named(live)) if is_shown else [],
        candidate=show(_named(outcome)) if is_shown and isinstance(outcome, InferReply) else [],
        error=error[:500],
    )
    return Pair(judged, live.execution_s, candidate_s, kept)


def _is_small(one: _InFlight, outcome: Outcome) -> bool:
    """Returns True if few numbers are to be compared, and no texts."""
    arrays = [tensor.array for tensor in one.call.inputs]
    arrays += one.reply.outputs.values()
    if isinstance(outcome, InferReply):
        arrays += outcome.outputs.values()
    return (
        len(arrays) <= FEW_TENSORS
        and sum(array.size for array in arrays) <= FEW_ELEMENTS
        and not any(array.dtype.hasobject for array in arrays)
    )


def _named(reply: InferReply) -> Sequence[tuple[str, str, Array]]:
    return [(name, reply.datatypes[name], array) for name, array in reply.outputs.items()]


def _bytes_of(arrays: Iterable[Array]) -> int:
    """Returns the bytes of arrays; more than the limit for too many texts."""
    total = 0
    for array in arrays:
        if array.dtype.hasobject:
            if array.size > MOST_TEXTS:
                return MOST_IN_FLIGHT_BYTES + 1
            total += sum(map(len, array.ravel().tolist()))
        total += array.nbytes
    return total
