"""The sequences of one lane, and the slot that each is bound to: one slot for each instance.

In: steps of sequences, one at a time for each (`services/queueing/sequence_steps.py`). Out: the
slot whose instance runs them.

Rules:
- a sequence keeps its slot from its first step to its last, or until it is idle for too long;
- when the instance of a slot is replaced, its sequences are lost: the state was in the instance;
- a step of a sequence that is not bound is refused, unless it is the first.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable

import msgspec

from services.errors import QueueFullError, SequenceLostError
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest, Lane, SequenceStep

IDLE_S = 60.0
"""Time without a step after which a sequence is forgotten. Triton's default for a sequence batcher
(`max_sequence_idle_microseconds`) is one second, too short for a person who types."""
MAX_SEQUENCES = 4096
"""Sequences bound at once; more are refused (503)."""


class _Sequence(msgspec.Struct, gc=False):
    slot: int
    used_at: float
    """`time.monotonic()` second of its last step."""


class SequenceSlots:
    """The sequences of one lane.

    Args:
        lane: model version, for messages.
        count: number of slots.
        idle: returns the slots whose instances are idle.
    """

    def __init__(self, lane: Lane, count: int, idle: Callable[[], Container[int]]) -> None:
        self._lane = lane
        self._count = count
        self.idle = idle
        self._bound: OrderedDict[str, _Sequence] = OrderedDict()
        """By id; the one without a step for longest is first."""
        self._sequences: Counter[int] = Counter()
        """Number of bound sequences by slot."""

    def bind(self, step: SequenceStep, now: float) -> None:
        """Binds a sequence that begins, and checks one that goes on.

        Args:
            step: step that arrives.
            now: `time.monotonic()` second.

        Raises:
            SequenceLostError: it is not the first step, and its sequence is not bound.
            QueueFullError: too many sequences are bound.
        """
        self._forget_idle(now)
        if step.is_start:
            self._unbind(step.id)  # it begins anew
            if len(self._bound) >= MAX_SEQUENCES:
                raise QueueFullError(
                    f"{MAX_SEQUENCES} sequences of model {self._lane} are open, the limit; end "
                    "some, retry later or add servers"
                )
            slot = min(range(self._count), key=lambda one: self._sequences[one])
            self._bound[step.id] = _Sequence(slot, now)
            self._sequences[slot] += 1
            return
        found = self._bound.get(step.id)
        if found is None:
            raise self.lost(step.id)
        found.used_at = now
        self._bound.move_to_end(step.id)

    def of(self, request: InferRequest) -> int | None:
        """Returns the slot of a request's sequence; None for a request by itself."""
        if request.sequence is None:
            return None
        found = self._bound.get(request.sequence.id)
        return None if found is None else found.slot

    def ran(self, entries: Iterable[Entry]) -> None:
        """Forgets the sequences whose last steps have run."""
        for entry in entries:
            step = entry.request.sequence
            if step is not None and step.is_end:
                self._unbind(step.id)

    def lose(self, slot: int) -> None:
        """Forgets the sequences of a slot, whose instance is replaced."""
        for name in [name for name, one in self._bound.items() if one.slot == slot]:
            self._unbind(name)

    def begin_anew(self, count: int) -> None:
        """Forgets all sequences: every instance is replaced, by so many."""
        self._bound.clear()
        self._sequences.clear()
        self._count = count

    def lost(self, name: str) -> SequenceLostError:
        """Returns the error of a step whose sequence is not bound."""
        return SequenceLostError(
            f"sequence '{name:.200}' of model {self._lane} is not open here: it was not started, "
            f"has ended, had no step for {IDLE_S:g} s, or lost its state with its instance; start "
            "it again"
        )

    def _forget_idle(self, now: float) -> None:
        while self._bound:
            name, oldest = next(iter(self._bound.items()))
            if now - oldest.used_at <= IDLE_S:
                return
            self._unbind(name)

    def _unbind(self, name: str) -> None:
        found = self._bound.pop(name, None)
        if found is not None:
            self._sequences[found.slot] -= 1
