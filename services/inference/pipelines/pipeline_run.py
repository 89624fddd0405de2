"""One request on its way through the steps of a pipeline.

In: an entry of the pipeline's lane, and a plan. Out: entries to the workers of the steps, as soon
as the tensors that they read are there, and one outcome to the caller.

Rules:
- a step's requests have the deadline, priority and trace of the pipeline's, and its id with the
  name of the step; they wait in the queues of their models beside all other requests, so that
  batches form across requests;
- all requests of one run use one version of each model; if one is unloaded meanwhile, the run
  begins anew with those that are loaded then, at most `MAX_RESTARTS` times;
- the first error of a step ends the run, and is given with the name of the step; the other
  requests of the run are dropped, and so are all of them when the caller leaves or its time is up;
- no step here blocks or awaits: a callback begins the next step, long copies are made in slices,
  and a step without a place at its worker is resumed when it has one (`step_gate.py`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial

import numpy as np

from flambeau.protocol.signature import SignatureError
from flambeau.protocol.tensors import Array
from model_store.pipelines.graph import INPUT, step_of
from model_store.pipelines.items import (
    ItemsError,
    Selection,
    Sliced,
    TooManyItemsError,
    joined,
    nothing,
    put_back,
    select,
    taken,
)
from services.errors import (
    BackendError,
    BufferFullError,
    InvalidRequestError,
    ModelNotReadyError,
    PayloadTooLargeError,
    ServingError,
    UnsupportedError,
)
from services.inference.pipelines.plan import PlannedStep, Planner
from services.inference.pipelines.step_gate import StepGate, Waiter
from services.queueing.memory_queue import Done, Entry, Outcome
from services.queueing.records import InferReply, InferRequest

logger = logging.getLogger("flambeau.pipeline")

MAX_RESTARTS = 3
"""Times that a run begins anew because a version that it used was unloaded."""
REQUESTS_AT_ONCE = 16
"""Requests that a step sends in one turn of the event loop: each takes about 20 µs."""

Work = Generator[StepGate | None, None, None]
"""Work of a step: yields between its slices, or a gate to wait for a place at."""

_DROPPED = ServingError("the pipeline's request is over")
"""Outcome of requests of steps whose run is over; it is delivered to nobody."""


def _ended(gate: StepGate, done: Done, outcome: Outcome) -> None:
    """Gives back the place of a request of a step, and hands over its outcome."""
    if isinstance(outcome, ServingError) or outcome.is_last:
        gate.leave()
    done(outcome)


class PipelineRun:
    """The run of one request.

    Args:
        entry: the request and its caller.
        planner: makes the plans.
        ended: called once, when the caller has its outcome.

    Attributes:
        is_over: True once the caller has its outcome, or wants none.
    """

    __slots__ = (
        "_batch_rows", "_ended", "_entry", "_execution_s", "_held_bytes", "_left", "_needs",
        "_open", "_outcomes", "_plan", "_planner", "_queue_s", "_restarts", "_selections",
        "_unanswered", "_values", "_waiters", "is_over",
    )  # fmt: skip

    def __init__(self, entry: Entry, planner: Planner, ended: Callable[[Entry], None]) -> None:
        self._entry, self._planner, self._ended = entry, planner, ended
        self._restarts = self._held_bytes = 0
        self._open: list[Entry] = []
        """Requests of steps that have no outcome yet."""
        self._waiters: dict[Waiter, StepGate] = {}
        """Steps that wait for a place at their workers."""
        self.is_over = False

    def begin(self) -> None:
        """Begins every step that reads nothing but the request."""
        try:
            plan = self._plan = self._planner.plan(self._entry.request.accuracy)
        except ServingError as error:
            self._finish(error)
            return
        self._values: dict[str, Array] = {
            f"{INPUT}.{name}": array for name, array in self._entry.request.inputs.items()
        }
        self._needs = [step.needs for step in plan.steps]
        self._left = len(plan.steps)
        self._outcomes: dict[int, dict[int, InferReply]] = {}
        """Replies by step and by the place of their request."""
        self._unanswered: dict[int, int] = {}
        """Requests of each step that have no reply yet, or are not sent yet."""
        self._selections: dict[str, Selection] = {}
        self._queue_s = self._execution_s = 0.0
        self._batch_rows = 0
        attempt = self._restarts
        for step in plan.steps:
            if not step.needs and self._goes_on(attempt):
                self._start(step)

    def _goes_on(self, attempt: int) -> bool:
        """Returns True unless the run is over, or began anew since."""
        return not self.is_over and attempt == self._restarts

    def abandon(self, reason: str) -> None:
        """Drops the requests of all steps: the caller has left, or has its outcome.

        Args:
            reason: as in `Intake.discard`.
        """
        self.is_over = True
        waiters, self._waiters = self._waiters, {}
        for waiter, gate in waiters.items():
            gate.forget(waiter)
        self._planner.held.give(self._held_bytes)
        self._held_bytes = 0
        entries, self._open = self._open, []
        for entry in entries:
            entry.abandon(_DROPPED, reason)

    def _start(self, step: PlannedStep) -> None:
        rows = self._entry.request.rows
        gate = step.gates[self._entry.request.priority]
        if step.is_whole and rows <= step.signature.max_batch_size and gate.enter():
            values, done = self._values, partial(self._replied_whole, self._restarts, step)
            inputs = {name: values[ref] for name, ref in step.whole_inputs}
            self._send(step, gate, inputs, rows, done)
        else:
            self._go_on(self._restarts, step, self._prepare(step))

    def _go_on(self, attempt: int, step: PlannedStep | None, work: Work) -> None:
        """Does the next slice of work for a step, or for the answer."""
        if not self._goes_on(attempt):
            return
        try:
            gate = next(work)
        except StopIteration:
            return
        except TooManyItemsError as error:
            self._fail(step, PayloadTooLargeError(str(error)))
        except ItemsError as error:
            self._fail(step, BackendError(str(error)))
        except BufferFullError as error:
            self._fail(step, error)
        except Exception:  # a bug here must not leave the caller without an answer
            logger.exception(
                "a pipeline failed", extra={"request_id": self._entry.request.request_id}
            )
            self._fail(step, ServingError("internal error; see the server's log"))
        else:
            go_on = partial(self._go_on, attempt, step, work)
            if gate is None:
                asyncio.get_running_loop().call_soon(go_on)
            else:
                self._wait(gate, go_on)

    def _wait(self, gate: StepGate, go_on: Callable[[], None]) -> None:
        """Goes on with a step once its request has a place."""

        def resume() -> None:
            del self._waiters[waiter]
            go_on()

        waiter = gate.wait(self._entry.request.deadline, resume)
        self._waiters[waiter] = gate

    def _prepare(self, step: PlannedStep) -> Work:
        """Selects the rows or items of a step, and sends its requests."""
        values, rows = self._values, self._entry.request.rows
        selection = Selection(rows, None, None)
        if step.for_each is not None or step.where is not None:
            for_each = None if step.for_each is None else values[step.for_each]
            where = None if step.where is None else values[step.where]
            selection = self._selections[step.name] = select(rows, for_each, where)
        if not selection.count:
            for name, ref in step.gives:
                values[ref] = nothing(*step.empty_output(name), selection)
                self._hold(values[ref])
            self._done(step)
            return
        inputs = {}
        for take in step.takes:
            array = yield from self._value(take.refs)
            inputs[take.name] = yield from taken(array, selection, take.by_item)
            if not np.may_share_memory(inputs[take.name], array):
                self._hold(inputs[take.name])
        attempt, at_once = self._restarts, step.signature.max_batch_size
        gate = step.gates[self._entry.request.priority]
        starts = range(0, selection.count, at_once)
        self._outcomes[step.number], self._unanswered[step.number] = {}, len(starts)
        for place, start in enumerate(starts):
            if place and place % REQUESTS_AT_ONCE == 0:
                yield None
            if not self._goes_on(attempt):
                return
            if not gate.enter():
                yield gate  # it is resumed with a place
            batch = {name: array[start : start + at_once] for name, array in inputs.items()}
            done = partial(self._replied, attempt, step, place)
            self._send(step, gate, batch, min(at_once, selection.count - start), done)

    def _hold(self, array: Array) -> None:
        """Counts the bytes of a tensor until the run is over.

        Raises:
            BufferFullError: all requests hold too many.
        """
        self._planner.held.take(array.nbytes)
        self._held_bytes += array.nbytes

    def _value(self, refs: tuple[str, ...]) -> Sliced[Array]:
        """Returns a tensor, or the join of several."""
        if len(refs) == 1:
            return self._values[refs[0]]
        chosen = [self._selections[step_of(ref)].chosen_rows() for ref in refs]
        return (yield from joined([self._values[ref] for ref in refs], chosen))

    def _send(
        self,
        step: PlannedStep,
        gate: StepGate,
        inputs: Mapping[str, Array],
        rows: int,
        done: Done,
    ) -> None:
        """Sends one request of a step, which has a place, to its worker."""
        if self._planner.worker_of(step.lane) is not step.worker:
            gate.leave()
            self._restart(step)
            return
        request = self._entry.request
        try:
            length = step.length_of(inputs)
        except SignatureError as error:
            gate.leave()
            self._fail(step, InvalidRequestError(str(error)))
            return
        sent = Entry(
            InferRequest(
                request_id=f"{request.request_id}/{step.name}",
                lane=step.lane,
                inputs=inputs,
                rows=rows,
                deadline=request.deadline,
                priority=request.priority,
                length=length,
                outputs=step.outputs,
                alone=request.alone,
                trace=request.trace,
            ),
            time.monotonic(),
            partial(_ended, gate, done),
        )
        sent.intake = step.worker
        self._open.append(sent)
        step.worker.accept(sent)

    def _replied(self, attempt: int, step: PlannedStep, place: int, outcome: Outcome) -> None:
        """Takes the outcome of one request of a step."""
        if (reply := self._checked(attempt, step, outcome)) is None:
            return
        replies = self._outcomes[step.number]
        replies[place] = reply
        self._unanswered[step.number] -= 1
        if not self._unanswered[step.number]:
            in_order = [replies[place] for place in range(len(replies))]
            self._note(
                max(one.queue_s for one in in_order),
                max(one.execution_s for one in in_order),
                max(one.batch_rows for one in in_order),
            )
            self._go_on(attempt, step, self._collect(step, in_order))

    def _replied_whole(self, attempt: int, step: PlannedStep, outcome: Outcome) -> None:
        """Takes the outcome of the only request of a step, whose tensors are passed on whole."""
        if (reply := self._checked(attempt, step, outcome)) is None:
            return
        self._note(reply.queue_s, reply.execution_s, reply.batch_rows)
        values, outputs = self._values, reply.outputs
        try:
            for name, ref in step.gives:
                values[ref] = outputs[name]
                self._hold(values[ref])
        except BufferFullError as error:
            self._fail(step, error)
            return
        self._done(step)

    def _checked(self, attempt: int, step: PlannedStep, outcome: Outcome) -> InferReply | None:
        """Returns the reply of a step; None if it is none, or nobody waits for it."""
        if self.is_over or attempt != self._restarts:
            return None
        if isinstance(outcome, ServingError):
            self._fail(step, outcome)
            return None
        if not outcome.is_last or not outcome.outputs:
            words = (
                f"model {step.lane} answers in several parts or in none, and a step takes exactly "
                "one answer"
            )
            self._fail(step, UnsupportedError(words))
            return None
        return outcome

    def _note(self, queue_s: float, execution_s: float, batch_rows: int) -> None:
        """Adds the times of a step to those of the request."""
        self._queue_s += queue_s
        self._execution_s += execution_s
        if batch_rows > self._batch_rows:
            self._batch_rows = batch_rows

    def _collect(self, step: PlannedStep, replies: list[InferReply]) -> Sliced[None]:
        """Joins the outputs of a step's requests."""
        selection = self._selections.get(step.name)
        if selection is None:
            selection = Selection(self._entry.request.rows, None, None)
        for name, ref in step.gives:
            parts = [reply.outputs[name] for reply in replies]
            self._values[ref] = yield from put_back(parts, selection)
            self._hold(self._values[ref])
        self._done(step)

    def _done(self, step: PlannedStep) -> None:
        """Begins the steps that waited for this one alone, or answers."""
        attempt, steps = self._restarts, self._plan.steps
        self._left -= 1
        if not self._left:
            if self._plan.has_joins:
                self._go_on(attempt, None, self._join_outputs())
            else:
                values, refs = self._values, self._plan.outputs
                names = self._entry.request.outputs or refs
                self._answer({name: values[refs[name][0]] for name in names})
            return
        for number in step.readers:
            if not self._goes_on(attempt):
                return
            self._needs[number] -= 1
            if not self._needs[number]:
                self._start(steps[number])

    def _join_outputs(self) -> Sliced[None]:
        """Computes the outputs, some of which are joins, and answers."""
        outputs = {}
        for name in self._entry.request.outputs or self._plan.outputs:
            outputs[name] = yield from self._value(self._plan.outputs[name])
        self._answer(outputs)

    def _answer(self, outputs: Mapping[str, Array]) -> None:
        """Answers the caller with the outputs of the pipeline."""
        self._finish(
            InferReply(
                lane=self._entry.request.lane,
                outputs=outputs,
                datatypes=self._plan.datatypes,
                batch_rows=self._batch_rows,
                queue_s=self._queue_s,
                execution_s=self._execution_s,
            )
        )

    def _restart(self, step: PlannedStep) -> None:
        """Begins anew, because the version that a step used is unloaded."""
        self._restarts += 1
        self.abandon("failed")
        self.is_over = False
        if self._restarts > MAX_RESTARTS:
            words = f"model {step.lane} was unloaded while the request ran; try again"
            self._fail(step, ModelNotReadyError(words))
            return
        self.begin()

    def _fail(self, step: PlannedStep | None, error: ServingError) -> None:
        """Ends the run with an error, and says which step it is of."""
        if step is not None:
            told = type(error)(f"step '{step.name}': {error}")
            if error.wait_s is not None:
                told.wait_s = error.wait_s
            error = told
        self._finish(error)

    def _finish(self, outcome: Outcome) -> None:
        if not self.is_over:
            entry = self._entry
            self.abandon("failed")
            self._ended(entry)
            entry.finish(outcome)
