"""One request on its way to a drawn version: what its outcome counts for.

In: outcomes of the queue, and how the inference ended. Out: a count in each comparison.

A failure is one of the version's own:
- its backend failed, other than by refusing the input, or its queue was full;
- it gave no answer although the request waited for the server's own limit, or for so much longer
  than the live version usually takes (`Comparison.patience_s`) that it hangs; whether the caller
  still waits then, disconnects, or its deadline passes, is the same, and both versions are judged
  alike;
- its answer could not be written, through no fault of the request;
- it does not take an input that the live version has taken in its place.
A short deadline, a connection that the caller closes and an input that the model refuses are not
counted: a caller can bring them about alone. Nor are refusals that are the same for all versions.
Inputs that a version fails on, or answers with an infinity, are counted, and a caller can send them
on purpose. Drawn at random, they reach both versions alike; drawn by a sticky value or a sequence's
id that the caller chooses, one alone. So the operator's own gateway should set the sticky value
(docs/guides/rollouts.md).
"""

import logging
import time
from collections.abc import Callable, Sequence

from services.errors import (
    BackendError,
    DeadlineExceededError,
    InputRefusedError,
    OverloadedError,
    QueueFullError,
    ServingError,
    UnsupportedError,
)
from services.gateway.admission import InferCall
from services.gateway.traffic.answer_comparison import Task, bf16_of, has_nan, output_of
from services.gateway.traffic.mirrors import Mirrors, Target
from services.queueing.memory_queue import Done, Outcome
from services.queueing.records import InferReply
from services.rollouts.evidence.evidence import Version
from services.rollouts.traffic_counts import Comparison

logger = logging.getLogger("flambeau.traffic")

Counted = tuple[Comparison, float, Version]
"""Where a request is counted: the counts, the candidate's share, and which of the two it is."""


class RoutedCall:
    """A request on its way to the version that was drawn.

    Args:
        call: the request.
        task: what the model's outputs mean.
        counted: where its outcome is counted.
        targets: where it is mirrored once it is answered.
        mirrors: repeats it there.
        limit_s: the server's own limit of a request's time.
        refused: where it fails once it is admitted: its version does not take what this one does.
        renew: called once a step of a sequence is answered.

    Attributes:
        call: the request, with a version unless the live one has it.
    """

    __slots__ = (
        "_began", "_counted", "_done", "_has_last", "_has_outcome", "_is_failed", "_is_over",
        "_is_written", "_limit_s", "_mirrors", "_nan", "_output", "_refused", "_renew", "_seconds",
        "_targets", "_task", "call",
    )  # fmt: skip

    def __init__(
        self,
        call: InferCall,
        task: Task,
        counted: Sequence[Counted],
        targets: Sequence[Target],
        mirrors: Mirrors,
        *,
        limit_s: float,
        refused: Sequence[Counted] = (),
        renew: Callable[[], None] | None = None,
    ) -> None:
        self.call = call
        self._refused = refused
        self._renew = renew
        self._task, self._counted, self._targets, self._mirrors = task, counted, targets, mirrors
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._seconds = -1.0
        """Time until the first answer: how fast a caller reads the others says nothing."""
        self._done: Done
        self._has_outcome = self._is_failed = self._is_over = self._nan = False
        self._has_last = self._is_written = False
        """Whether the last answer has come, and whether it is encoded, or known not to be: small
        ones are encoded as they come, large ones in slices, later."""
        self._output: int | None = None

    def watched(self, done: Done) -> Done:
        """Returns a callback that calls another one, and then counts."""
        self._done = done
        return self._replied

    def admitted(self) -> None:
        """Handles that admission has taken the request."""
        self._count(self._refused, failed=True)
        if not self._has_outcome:
            for comparison, _, _ in self._counted:
                comparison.waiting[self] = self._began

    def fail_hanging(self) -> None:
        """Counts a failure if the request has waited for longer than a version may take."""
        if self._hangs():
            self._is_failed = True
            self._end()

    def written(self) -> None:
        """Handles that the last answer is encoded and about to be written."""
        self._is_written = True
        self._end_answered()

    def unwritable(self, error: ServingError) -> None:
        """Handles an answer that its edge could not write: a handler's failure, for example."""
        if _is_of_answer(error):
            self._is_failed = True
        self._is_written = True
        self._end_answered()

    def left(self) -> None:
        """Handles a caller that waits no longer: it has disconnected, or its time is over."""
        if self._has_last:
            self._end()
        else:
            self.fail_hanging()
            self._wait_no_longer()

    def _wait_no_longer(self) -> None:
        for comparison, _, _ in self._counted:
            comparison.waiting.pop(self, None)

    def _replied(self, outcome: Outcome) -> None:
        if self._seconds < 0 and isinstance(outcome, InferReply):
            self._seconds = time.monotonic() - self._began
        self._done(outcome)
        if not self._has_outcome:
            self._has_outcome = True
            self._wait_no_longer()
        try:
            if isinstance(outcome, InferReply):
                self._answered(outcome)
            elif self._is_of_version(outcome):
                self._is_failed = True
                self._end()
        except Exception:  # it must not harm other requests of its batch
            logger.exception("the outcome of a request could not be counted")

    def _is_of_version(self, error: ServingError) -> bool:
        """Returns True if an error is the version's own."""
        if isinstance(error, DeadlineExceededError):
            return self._hangs()
        if isinstance(error, QueueFullError):
            return self.call.sequence is None  # a caller can fill the queue of its own sequence
        return isinstance(error, BackendError) and not isinstance(error, InputRefusedError)

    def _hangs(self) -> bool:
        """Returns True if the request has waited for longer than a version may take."""
        waited = time.monotonic() - self._began
        if waited >= self._limit_s:
            return True
        patience = [comparison.patience_s for comparison, _, _ in self._counted]
        return self._seconds < 0 and bool(patience) and waited >= max(patience)

    def _answered(self, reply: InferReply) -> None:
        if self._counted:
            outputs, bf16 = reply.outputs, bf16_of(reply)
            self._nan = self._nan or has_nan(outputs, bf16)
            if self._output is None:
                self._output = output_of(outputs, self._task, bf16)
        if not reply.is_last:
            return
        if self._renew is not None:
            self._renew()
        self._has_last = True
        self._end_answered()
        is_whole = reply.number == 0 and bool(reply.outputs)
        for target in self._targets:
            if is_whole:
                self._mirrors.offer(target, self.call, reply)
            else:
                self._mirrors.drop(target, self.call.model, "stream")

    def _end_answered(self) -> None:
        """Counts an answered request once its answer is looked at and encoded."""
        if self._has_last and self._is_written:
            self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._wait_no_longer()
        self._count(self._counted, failed=self._is_failed)

    def _count(self, counted: Sequence[Counted], *, failed: bool) -> None:
        """Counts the outcome; a fault is logged, and reaches neither the caller nor its batch."""
        try:
            for comparison, share, version in counted:
                comparison.count(
                    share,
                    version,
                    self._seconds,
                    failed=failed,
                    nan=self._nan,
                    output=self._output,
                )
        except Exception:
            logger.exception("the outcome of a request could not be counted")


def _is_of_answer(error: ServingError) -> bool:
    """Returns True if an answer is at fault that could not be written, and not the request."""
    return error.status >= 500 and not isinstance(error, OverloadedError | UnsupportedError)
