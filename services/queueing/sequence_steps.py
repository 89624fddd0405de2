"""The order of the steps of sequences: one step at a time, in the order in which they came.

In: entries of requests that carry a sequence. Out: which of them may go on now.

A step goes on when the one before it is over: answered, failed, cancelled or expired. So no batch
holds two steps of one sequence, and none overtakes another, at a gateway and again at a worker.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from services.errors import QueueFullError
from services.queueing.records import InferRequest, Lane

MAX_WAITING_STEPS = 64
"""Steps of one sequence, the one under way too; a client that waits for answers has one."""


class Step(Protocol):
    """The interface of an entry that carries a step."""

    @property
    def request(self) -> InferRequest:
        """Its request."""


E = TypeVar("E", bound=Step)


class SequenceSteps(Generic[E]):
    """The steps of all sequences in one process."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Lane, str], E | deque[E]] = {}
        """By lane and sequence: the step under way; once another has come, with those behind it."""

    def begin(self, entry: E) -> bool:
        """Takes a step. Returns True if it may go on now.

        Raises:
            QueueFullError: too many wait.
        """
        request = entry.request
        key = request.lane, request.sequence.id  # type: ignore[union-attr]
        steps = self._steps.setdefault(key, entry)
        if steps is entry:
            return True
        if not isinstance(steps, deque):
            steps = self._steps[key] = deque([steps])
        if len(steps) >= MAX_WAITING_STEPS:
            raise QueueFullError(
                f"{MAX_WAITING_STEPS} steps of sequence '{key[1]:.200}' wait for model {key[0]}, "
                "the limit; send the next one when a step is answered"
            )
        steps.append(entry)
        return False

    def over(self, entry: E) -> E | None:
        """Removes a step that is over. Returns the one that may go on now, if any."""
        request = entry.request
        key = request.lane, request.sequence.id  # type: ignore[union-attr]
        steps = self._steps[key]
        if not isinstance(steps, deque):
            del self._steps[key]
            return None
        if steps[0] is not entry:
            steps.remove(entry)
            return None
        steps.popleft()
        if steps:
            return steps[0]
        del self._steps[key]
        return None

    def behind(self, lane: Lane) -> Iterator[E]:
        """Yields the steps of a lane that wait behind others."""
        for (own, _), steps in list(self._steps.items()):
            if own == lane and isinstance(steps, deque):
                yield from list(steps)[1:]
