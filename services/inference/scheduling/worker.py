"""The worker of one lane: accepts requests, forms batches, runs them, answers each request once.

Work-conserving: if an instance is idle and the device has a free slot, waiting requests run at
once; while all are busy, requests queue. The hot path is below: accept, take a turn, finish.

Rules: a request that would miss its deadline, by measured latency, is refused on arrival; an
instance that blocks past `execution_timeout_s` is abandoned and replaced, and its requests are
answered with an error; everything except the backend's run happens on the event loop.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flambeau.protocol.signature import Signature
from services.errors import BackendError, DisplacedError, ServingError, WouldMissDeadlineError
from services.inference.backends.backend import Backend
from services.inference.scheduling.batch_counts import BatchCounts
from services.inference.scheduling.batch_rules import Batch, BatchRules
from services.inference.scheduling.batch_traces import trace_batch
from services.inference.scheduling.batcher import Batcher
from services.inference.scheduling.device_turns import DeviceTurns
from services.inference.scheduling.instance import BatchPart, BatchReport, Instance
from services.inference.scheduling.instance_pool import InstancePool
from services.inference.scheduling.latency import LatencyModel
from services.inference.scheduling.loop_runs import LaneLoopRuns
from services.inference.scheduling.sequence_slots import SequenceSlots
from services.queueing.memory_queue import Entry, deadline_exceeded
from services.queueing.records import LOWEST_PRIORITY, MIRROR_PRIORITY, InferReply, Lane
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer

logger = logging.getLogger("flambeau.worker")

DECAY_EVERY_S = 1.0
"""Shortest interval at which an idle lane that refuses a request lowers its estimate by a tenth:
a caller that retries many times a second must not make an estimate worthless."""
ANSWERS_AT_ONCE = 32
"""Responses in one turn of the event loop: each takes about 10 µs, and the loop must be free again
within 1 ms."""
MIRROR_WAITS_S = 10.0
"""Longest time that a mirrored request waits to run: it is held in memory, and its gateway counts
a request without an answer within 30 s as a failure of the candidate."""
BACKGROUND_AGAIN_S = 1.0
"""Retry interval of jobs that may not run now because recent requests had tight deadlines, which
count for a minute (`device_turns.LATELY_S`)."""
RUN_SHARE_RATE = 0.1
"""Learning rate, per batch, of the share of a batch's time that is spent in the backend. Half of
`latency.LEARNING_RATE`: the share changes with the load, not from batch to batch."""
PAUSE = 2.0
"""Pause before a lane's next express batch, as a multiple of its last batch's time, unless a full
batch waits. Batches of one or two rows would cost the event loop more than they gain. Of 0, 1, 2, 3
and 8, the best for all of three models on one core (docs/adr/0007)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """Configuration of one lane's worker."""

    lane: Lane
    signature: Signature
    rules: BatchRules
    latency: LatencyModel
    backends: list[Backend]
    """Open backends, one for each instance."""
    reopen: Callable[[], Backend]
    """Opens another backend of the same verified artifact."""
    execution_timeout_s: float
    """Timeout of one run of the backend."""


class Worker:
    """Runs the batches of one lane until it is closed and empty."""

    def __init__(
        self,
        plan: WorkerPlan,
        turns: DeviceTurns,
        metrics: Metrics,
        tracer: Tracer | None = None,
        slots: SequenceSlots | None = None,
    ) -> None:
        # Not the plan itself: it would retain the backends of an artifact that is replaced.
        self._lane, self._latency = plan.lane, plan.latency
        self._max_rows, self._timeout_s = plan.rules.max_rows, plan.execution_timeout_s
        self._turns = turns
        self._tracer = tracer
        self._batcher = Batcher(plan.rules, plan.latency, slots)
        self._background = Batcher(plan.rules, plan.latency)
        """Jobs, which run while no other requests wait for the device."""
        self._datatypes = {spec.name: spec.datatype for spec in plan.signature.outputs}
        self._loop = asyncio.get_running_loop()
        self._pool = InstancePool(
            plan.lane, plan.signature, plan.rules, plan.backends, plan.reopen,
            plan.execution_timeout_s, self,
        )  # fmt: skip
        self._idle, self._busy = self._pool.idle, self._pool.busy
        self._loop_runs = LaneLoopRuns(turns.loop_runs)
        self._loop_runs.fits = self._pool.fits_loop
        self._instances = len(plan.backends)
        self._answering = 0
        """Batches that have run and still have unwritten responses."""
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._background_timer: asyncio.TimerHandle | None = None
        self._mirror_timer: asyncio.TimerHandle | None = None
        self._pauses_until = 0.0
        """Earliest start of the next express batch; a `time.monotonic()` second."""
        self._run_share = 1.0
        """Share of a batch's time that the backend runs. The rest is spent between the event loop
        and the thread, and does not use the device."""
        self._closing = False
        self._emptied = asyncio.Event()
        self._decayed_at = 0.0
        """Time of the last decay of an estimate; a `time.monotonic()` second."""
        self.last_used_at = time.monotonic()
        """Arrival of the last request; a `time.monotonic()` second."""
        self._counts = BatchCounts(plan.lane, metrics)

    @property
    def waiting(self) -> int:
        """Number of entries that wait for a batch, without jobs."""
        return self._batcher.waiting

    @property
    def capacity(self) -> int:
        """Most entries to hold here: those that run at once, and one batch more."""
        return (self._instances + 1) * self._max_rows

    @property
    def background_capacity(self) -> int:
        """Most jobs to hold here: `capacity`, or 0 while requests wait for the device."""
        return 0 if self._batcher.waiting or self._turns.wanted else self.capacity

    @property
    def row_s(self) -> float:
        """Seconds by which each waiting row delays the next, as learned; 0 if unknown."""
        return self._batcher.row_s / self._instances

    @property
    def idle(self) -> bool:
        """True if nothing waits, nothing runs, and all responses are written."""
        return not (
            self._batcher.waiting or self._background.waiting or self._busy or self._answering
        )

    def accept(self, entry: Entry) -> None:
        """Queues an entry, or refuses it if it would miss its deadline."""
        now = self.last_used_at = entry.enqueued_at
        if entry.request.priority > LOWEST_PRIORITY:
            if entry.request.priority >= MIRROR_PRIORITY and not self._takes_mirrored(entry):
                return
            self._background.add(entry)
            self._loop.call_soon(self._turns.ask_background, self)
            return
        slack = entry.request.deadline - now
        # Batches of other lanes may occupy the whole device, and for long.
        displaced = not self._turns.free and not self._busy
        near = displaced or not self._batcher.is_far(entry.request, slack)
        if near and self._is_late(entry, slack):
            return
        if slack < self._turns.tightest_s or now > self._turns.tight_until:
            self._turns.tighten(slack, now)
        self._batcher.add(entry)
        if not self._asked:
            # Deferred to the next loop iteration, so that all requests read by now share a batch.
            self._asked = True
            self._loop.call_soon(self._ask)

    def _takes_mirrored(self, entry: Entry) -> bool:
        """Refuses a mirrored request while others wait; has it refused if it waits too long."""
        if self._batcher.waiting or self._turns.has_backlog:
            entry.finish(self._displaced())
            return False
        if self._mirror_timer is None:
            self._mirror_timer = self._loop.call_later(MIRROR_WAITS_S, self._displace)
        return True

    def _displace(self) -> None:
        """Refuses mirrored requests that have waited too long, wherever their callers are."""
        self._mirror_timer = None
        now, next_s = time.monotonic(), math.inf
        for entry in self._background.waiting_since(now):
            if entry.request.priority < MIRROR_PRIORITY:
                continue
            left_s = entry.enqueued_at + MIRROR_WAITS_S - now
            if left_s > 0:
                next_s = min(next_s, left_s)
            elif self._background.remove(entry):
                entry.finish(self._displaced())
        if next_s < math.inf:
            self._mirror_timer = self._loop.call_later(next_s, self._displace)
        self._look_whether_emptied()

    def _displaced(self) -> DisplacedError:
        return DisplacedError(f"requests keep a mirrored one of model {self._lane} from running")

    def lost(self, slot: int) -> None:
        """An instance was replaced; requests that are independent of each other lose nothing."""

    def discard(self, entry: Entry, reason: str) -> None:
        """Removes a dead entry from the queue; ignores one that is in a batch."""
        if self._remove(entry):
            self._counts.dropped(reason, entry)
            self._look_whether_emptied()

    def release(self, entry: Entry) -> bool:
        """Removes an entry that is not in a batch yet. Returns True if it was queued here."""
        was_here = self._remove(entry)
        self._look_whether_emptied()
        return was_here

    def _remove(self, entry: Entry) -> bool:
        is_job = entry.request.priority > LOWEST_PRIORITY
        return (self._background if is_job else self._batcher).remove(entry)

    def next_s(self) -> float:
        """Returns the next batch's expected seconds, if it may run as express; see `Runner`."""
        now = time.monotonic()
        if not self._pool.may_run(self._batcher, now):
            return math.inf
        if now < self._pauses_until and not self._batcher.fills_batch(now):
            if self._pause is None:
                self._pause = self._loop.call_at(self._pauses_until, self._pause_is_over)
            return math.inf
        return self._batcher.next_s(now) * self._run_share

    def take_turn(self) -> float | None:
        """Starts the next batch, if there is one and an instance is idle; see `Runner`."""
        now = time.monotonic()
        if not self._pool.may_run(self._batcher, now):
            return None
        batch = self._batcher.next_batch(now)
        self._refuse_hopeless()
        if batch is None:
            self._ask_at(self._batcher.ready_at(now))
            self._look_whether_emptied()
            return None
        return self._begin(batch, now)

    def take_background_turn(self) -> float | None:
        """Starts the next batch of jobs, if they may run now; see `Runner`."""
        now = time.monotonic()
        if not self._pool.may_run(self._background, now):
            return None
        batch = self._background.next_batch(now, self._turns.background_s(now))
        self._refuse_hopeless()
        if batch is None:
            if self._background.waiting and self._background_timer is None:
                self._background_timer = self._loop.call_later(
                    BACKGROUND_AGAIN_S, self._background_time
                )
            self._look_whether_emptied()
            return None
        return self._begin(batch, now)

    def _begin(self, batch: Batch, now: float) -> float:
        """Starts a batch on an idle instance. Returns the expected seconds of its run."""
        expected_s = batch.curve.expected_s(batch.padded_rows) * self._run_share
        self._counts.began(batch, now)
        self._pool.begin(batch, expected_s, on_loop=self._loop_runs.takes(batch, now))
        return expected_s

    def replace_backends(
        self,
        backends: list[Backend],
        reopen: Callable[[], Backend],
        latency_s: Mapping[int, float],
        row_elements: int,
    ) -> None:
        """Runs all later batches on new backends of the same signature; running batches finish.

        Args:
            backends: open backends, one for each instance.
            reopen: opener of another backend of the same verified artifact.
            latency_s: seconds of one run by batch size.
            row_elements: input elements of the rows that `latency_s` was measured with.
        """
        self._instances = len(backends)
        self._latency.begin_anew(latency_s, row_elements)
        self._pool.replace(backends, reopen)
        self._loop_runs.fits = self._pool.fits_loop
        self.opened()

    async def run(self) -> None:
        """Waits until the lane is closed and all requests are answered; closes the backends."""
        await self._emptied.wait()
        self._turns.leave(self)
        timers = self._timer, self._pause, self._background_timer, self._mirror_timer
        for timer in timers:
            if timer is not None:
                timer.cancel()
        await self._pool.end()

    def close(self) -> None:
        """Closes the lane to new requests; `run` ends once all requests are answered."""
        self._closing = True
        self._look_whether_emptied()

    def abandon_runs(self) -> None:
        """Abandons running batches whose requests were answered, because the process is exiting."""
        self._pool.abandon_runs()
        self._look_whether_emptied()

    def _background_time(self) -> None:
        self._background_timer = None
        self._ask_background()

    def _ask_background(self) -> None:
        if self._background.waiting:
            self._turns.ask_background(self)

    def _ask(self) -> None:
        self._asked = False
        self._turns.ask(self)

    def _pause_is_over(self) -> None:
        self._pause = None
        self._turns.ask(self)

    def _ask_at(self, moment: float | None) -> None:
        """Schedules the next request for a turn: when a delayed batch is due, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moment is not None:
            self._timer = self._loop.call_at(moment, self._ask)

    def _is_late(self, entry: Entry, slack: float) -> bool:
        """Refuses an entry if the backlog and its own run take longer than its deadline allows."""
        now = entry.enqueued_at
        at_once = min(len(self._idle) + len(self._busy) or 1, self._turns.share_of(self))
        run_s = self._batcher.finish_s(entry.request, now, at_once)
        need = run_s + self._free_in(now, run_s)
        if need <= slack:
            return False
        if slack > 0 and self.idle and now - self._decayed_at > DECAY_EVERY_S:
            self._decayed_at = now
            self._batcher.decay_estimate(entry.request)
        left = _milliseconds(slack) if slack > 0 else "no time"
        entry.refuse(
            WouldMissDeadlineError(
                f"model {self._lane} would need an estimated {_milliseconds(need)} for this "
                f"request, and its deadline leaves {left}; give it more time, retry later or add "
                "servers"
            )
        )
        return True

    def frees_at(self) -> float:
        """Returns a cautious estimate of the first running batch's end; see `Runner`."""
        return self._pool.frees_at()

    def _free_in(self, now: float, run_s: float) -> float:
        """Returns the expected seconds until an instance and a slot of the device are free."""
        instance_at = 0.0 if self._pool.is_free else self.frees_at()
        turns = self._turns
        slot_at = turns.frees_at(run_s * self._run_share)
        if not slot_at and not turns.free:  # it may run beside a longer batch
            slot_at = min(self._pauses_until, turns.frees_at(math.inf))
        return max(instance_at - now, slot_at - now, 0.0)

    def ran(self, instance: Instance, batch: Batch, report: BatchReport) -> None:
        """A batch was run, and its instance is free."""
        now = time.monotonic()
        given_at = instance.given_at
        took_s = report.seconds if report.on_loop else now - given_at - report.waited_s
        self._loop_runs.ran(batch, report, took_s, now)
        self._learn(batch, report, took_s, now)
        self._pauses_until = now + PAUSE * took_s
        self._answering += 1
        if report.on_loop:  # the next batch would run before these responses
            self._answer(batch, report, 0)
            self._give_turn_back(instance, report.seconds)
        else:  # it runs while they are written
            self._give_turn_back(instance, report.seconds)
            self._answer(batch, report, 0)
        if self._tracer is not None:
            trace_batch(self._tracer, self._lane, batch, report, given_at)

    def gave(self, part: BatchPart) -> None:
        """Hands over one of several answers to the requests of a batch."""
        batch = part.batch
        self._counts.gave(part)
        for entry, outputs in zip(batch.entries, part.results, strict=True):
            if isinstance(outputs, ServingError):
                entry.finish(outputs)
            elif outputs:
                entry.part(
                    InferReply(
                        lane=self._lane,
                        outputs=outputs,
                        datatypes=self._datatypes,
                        batch_rows=batch.rows,
                        queue_s=part.started_at - entry.enqueued_at,
                        execution_s=part.seconds,
                        number=part.number,
                        is_last=False,
                        window=entry.window,
                    )
                )

    def _answer(self, batch: Batch, report: BatchReport, start: int) -> None:
        """Writes the responses of a batch from one entry on, a few in each loop iteration."""
        stop = start + ANSWERS_AT_ONCE
        entries, results = batch.entries[start:stop], report.results[start:stop]
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, ServingError):
                entry.finish(result)
            else:
                entry.finish(
                    InferReply(
                        lane=self._lane,
                        outputs=result,
                        datatypes=self._datatypes,
                        batch_rows=batch.rows if report.together else entry.request.rows,
                        queue_s=report.started_at - entry.enqueued_at,
                        execution_s=report.seconds,
                        number=0 if entry.window is None else self._counts.ended(entry.window),
                    )
                )
        if stop < len(batch.entries):
            self._loop.call_soon(self._answer, batch, report, stop)
        else:
            self._answering -= 1
            self._look_whether_emptied()

    def _give_turn_back(self, instance: Instance, seconds: float) -> None:
        self._ask_background()
        if self._batcher.waiting and not self._asked:
            self._turns.done(self, instance.expected_s, seconds, asks=True)
        else:
            self._turns.done(self, instance.expected_s, seconds)

    def _learn(self, batch: Batch, report: BatchReport, took_s: float, now: float) -> None:
        """Counts a batch, and learns its latency, including the time to and from the thread."""
        self._counts.ran(batch, report, now)
        if not report.together:
            return
        run_s = report.seconds - report.waited_s
        batch.curve.observe(batch.padded_rows, run_s, max(took_s - run_s, 0.0))
        if took_s:  # 0 with a coarse clock
            self._run_share += RUN_SHARE_RATE * (report.seconds / took_s - self._run_share)

    def _refuse_hopeless(self) -> None:
        for entry in (*self._batcher.take_hopeless(), *self._background.take_hopeless()):
            self._counts.dropped("infeasible", entry)
            entry.finish(deadline_exceeded(entry.request))

    def _look_whether_emptied(self) -> None:
        if self._closing and self.idle:
            self._emptied.set()

    # Called by the pool, besides `ran`.

    @property
    def needs_instances(self) -> bool:
        """True unless the lane is closed and nothing waits."""
        return bool(not self._closing or self._batcher.waiting or self._background.waiting)

    def opened(self) -> None:
        """An instance became idle."""
        self._ask_background()
        self._turns.ask(self)

    def blocked(self, instance: Instance, batch: Batch) -> None:
        """An instance was abandoned, with its batch, because it did not finish in time."""
        limit_s = self._timeout_s
        self._counts.abandoned(batch)
        for entry in batch.entries:
            entry.finish(
                BackendError(
                    f"model {self._lane} did not finish within {limit_s:g} s "
                    "(execution_timeout_s); its worker was restarted"
                )
            )
        self._turns.done(self, instance.expected_s, limit_s, asks=bool(self._batcher.waiting))
        self._look_whether_emptied()

    def count_restart(self, reason: str) -> None:
        """Counts a backend that is opened again."""
        self._counts.restarted(reason)


def _milliseconds(seconds: float) -> str:
    """Returns a time as in `12.5 ms`; short ones with two digits, as in `0.03 ms`."""
    return f"{seconds * 1000:{'.1f' if seconds >= 1e-3 else '.2g'}} ms"
