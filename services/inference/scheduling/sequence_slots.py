"""The open sequences of one lane: the state of each, and the instance that it is bound to, if any.

In: steps of sequences, one at a time for each (`services/queueing/sequence_steps.py`). Out: the
place of each step: state tensors, slot, row.

Rules:
- a slot is one instance. A model that keeps its state itself has its sequences bound to slots, and
  they are lost when the instance is replaced. States that the server keeps outlive instances, and
  any of them runs the next step;
- the strategy `direct` also binds a sequence to a row of the batches of its slot;
- a sequence is open from its first step to its last, or until it is idle, or lasts, for too long;
- a step of a sequence that is not open is refused, unless it is the first, or may be it.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from flambeau.protocol.sequence_spec import Sequences, state_bytes
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensor_spec import TensorSpec
from flambeau.protocol.tensors import DATATYPES, Array
from services.errors import InvalidRequestError, QueueFullError, SequenceLostError
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest, Lane, SequenceStep
from services.telemetry.metrics import SEQUENCE_ENDS, Metrics

MAX_STATES_BYTES = 512 * 2**20
"""Bytes of the states of all open sequences of a lane; more sequences are refused (503)."""

ENDED_AT_ONCE = 1024
"""Sequences that end in one turn of the event loop: each takes 0.5 µs or so."""
FREED_AT_ONCE_BYTES = 16 * 2**20
"""Bytes of their states: memory goes back to the system at 10 to 30 GB/s."""


class OpenSequence(msgspec.Struct, gc=False):
    """One open sequence. `SequenceSlots` owns it, and the instance that runs a step its states."""

    slot: int | None
    """Its instance; None if any may run its steps."""
    row: int
    """Its row of the batches of that instance; -1 for any."""
    used_at: float
    """`time.monotonic()` second of its last step."""
    states: tuple[Array, ...]
    """In the order of the declaration: one row each, with the batch axis."""
    ends_at: float
    """`time.monotonic()` second at which it ends, even if it is in use; infinity for no limit."""
    under_way: bool = False
    """True while it has a step here that is not answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRules:
    """The rules of a model's sequences, by its signature."""

    sequences: Sequences
    initial: tuple[Array, ...]
    """The states of a sequence that begins."""
    most: int
    """Sequences that may be open at once."""
    state_bytes: int
    """Bytes of the states of one sequence."""
    max_rows: int
    id_range: tuple[int, int] | None
    """Numbers that the model's own input for ids can be; None if it can be any text."""

    @property
    def is_direct(self) -> bool:
        """True if a sequence has a row of its own."""
        return self.sequences.strategy == "direct"

    @property
    def has_slots(self) -> bool:
        """True if a sequence stays with one instance."""
        return self.is_direct or self.model_keeps_state

    @property
    def model_keeps_state(self) -> bool:
        """True if the server keeps no state for it."""
        return not self.initial


def sequence_rules(signature: Signature) -> SequenceRules:
    """Returns the rules of a signature with sequences."""
    sequences = signature.sequence
    assert sequences is not None
    specs = {spec.name: spec for spec in signature.inputs}
    size = sum(state_bytes(specs[name]) for name in sequences.states)
    id_range = None
    if sequences.id is not None and (datatype := specs[sequences.id].datatype) != "BYTES":
        limits = np.iinfo(DATATYPES[datatype].str)
        id_range = int(limits.min), int(limits.max)
    return SequenceRules(
        sequences=sequences,
        initial=tuple(
            initial_row(specs[name], state.initial) for name, state in sequences.states.items()
        ),
        most=min(sequences.max_sequences, max(1, MAX_STATES_BYTES // size)) if size else
        sequences.max_sequences,
        state_bytes=size,
        max_rows=signature.max_batch_size,
        id_range=id_range,
    )  # fmt: skip


def initial_row(spec: TensorSpec, initial: object) -> Array:
    """Returns the initial value of a state, a row with its batch axis."""
    shape = [1 if axis == spec.batch_axis else size for axis, size in enumerate(spec.shape)]
    numbers = np.asarray(initial, np.float32 if spec.datatype == "BF16" else None)
    if spec.datatype == "BF16":
        numbers = numbers.view(np.uint32) >> 16
    row = np.empty(math.prod(shape), DATATYPES[spec.datatype])
    row[...] = numbers
    return row.reshape(shape)


class SequenceSlots:
    """The sequences of one lane.

    Args:
        lane: model version, for messages.
        rules: of its signature.
        count: number of slots.
        idle: returns the slots whose instances are idle.
        metrics: count the sequences.
    """

    def __init__(
        self,
        lane: Lane,
        rules: SequenceRules,
        count: int,
        idle: Callable[[], Container[int]],
        metrics: Metrics,
    ) -> None:
        self._lane = lane
        self.rules = rules
        self._count = count
        self._idle_s = rules.sequences.max_idle_s
        self._lifetime_s = rules.sequences.max_lifetime_s or math.inf
        self._at_once = min(ENDED_AT_ONCE, FREED_AT_ONCE_BYTES // max(rules.state_bytes, 1)) or 1
        self.idle = idle
        labels = (lane.model, str(lane.version))
        self._counted = metrics.open_sequences.labels(*labels)
        self._ended = {
            reason: metrics.ended_sequences.labels(*labels, reason) for reason in SEQUENCE_ENDS
        }
        self._open: OrderedDict[str, OpenSequence] = OrderedDict()
        """By id; the one without a step for longest is first."""
        self._limited: OrderedDict[str, OpenSequence] = OrderedDict()
        """The open sequences whose lifetime is limited; the one that ends next is first."""
        self._sequences: Counter[int] = Counter()
        """Number of open sequences by slot."""
        self._taken: set[tuple[int, int]] = set()
        """Slots and rows that are taken."""
        self._gone: OrderedDict[str, OpenSequence] = OrderedDict()
        """Sequences that have ended all at once, and still have their states."""

    def __len__(self) -> int:
        return len(self._open)

    def bind(self, step: SequenceStep, now: float) -> OpenSequence:
        """Opens a sequence that begins, and finds one that goes on.

        Args:
            step: step that arrives.
            now: `time.monotonic()` second.

        Raises:
            SequenceLostError: it is not the first step, and its sequence is not open.
            QueueFullError: too many sequences are open.
            InvalidRequestError: the model takes no such id.
        """
        name = step.id
        known = self._open.get(name)
        is_open = known is not None and self._end_of(known, now) is None
        if step.is_start or (step.may_start and not is_open):
            found = self._begin(name, now)
        elif known is None or not is_open:
            raise self.lost(name)
        else:
            found = known
            self._open.move_to_end(name)
        found.used_at, found.under_way = now, True
        return found

    def _end_of(self, sequence: OpenSequence, now: float) -> str | None:
        """Returns the reason of the end of a sequence; None if it goes on."""
        if now >= sequence.ends_at:
            return "expired"
        return "idle" if now - sequence.used_at > self._idle_s else None

    def _begin(self, name: str, now: float) -> OpenSequence:
        rules = self.rules
        if rules.id_range is not None:
            _check_id(name, rules.id_range, self._lane)
        if (known := self._open.get(name)) is not None:  # it begins anew
            self._unbind(name, self._end_of(known, now) or "restarted")
        most = min(rules.most, self._count * rules.max_rows) if rules.is_direct else rules.most
        if len(self._open) >= most:
            self.forget_over(now, 1)
        if len(self._open) >= most:
            raise QueueFullError(
                f"{most} sequences of model {self._lane} are open, the limit of its signature, of "
                f"its batches or of {MAX_STATES_BYTES >> 20} MiB of states; end some, retry later "
                "or add servers"
            )
        slot, row = self._free_place() if rules.has_slots else (None, -1)
        found = OpenSequence(slot, row, now, rules.initial, now + self._lifetime_s)
        self._open[name] = found
        if found.ends_at < math.inf:
            self._limited[name] = found
        self._counted.value += 1
        return found

    def _free_place(self) -> tuple[int, int]:
        slot = min(range(self._count), key=lambda one: self._sequences[one])
        self._sequences[slot] += 1
        if not self.rules.is_direct:
            return slot, -1
        row = next(row for row in range(self.rules.max_rows) if (slot, row) not in self._taken)
        self._taken.add((slot, row))
        return slot, row

    def of(self, request: InferRequest) -> int | None:
        """Returns the slot of a request's sequence; None if any instance may run it."""
        if request.sequence is None:
            return None
        found = self._open.get(request.sequence.id)
        return None if found is None else found.slot

    def ran(self, entries: Iterable[Entry], now: float) -> None:
        """Closes the sequences whose last steps have run, or that have lasted too long.

        The others are idle from now on, and keep their order of arrival, so that others end later
        by the time of a run at most.
        """
        for entry in entries:
            step = entry.request.sequence
            assert step is not None
            if step.is_end:
                self._unbind(step.id, "ended")
            elif (found := self._open.get(step.id)) is None:
                continue
            elif now >= found.ends_at:
                self._unbind(step.id, "expired")
            else:
                found.used_at = now

    def lose(self, slot: int) -> bool:
        """Closes the sequences whose state was in an instance that is replaced, if any."""
        if not self.rules.model_keeps_state:
            return False
        others = OrderedDict((name, one) for name, one in self._open.items() if one.slot != slot)
        self._drop(len(self._open) - len(others), "lost")
        self._open = others
        if self._limited:
            self._limited = OrderedDict(
                (name, one) for name, one in self._limited.items() if one.slot != slot
            )
        self._sequences[slot] = 0
        self._taken = {place for place in self._taken if place[0] != slot}
        return True

    def begin_anew(self, count: int) -> bool:
        """Every instance is replaced, by so many: closes the sequences whose state was in them."""
        if not self.rules.model_keeps_state and (count >= self._count or not self.rules.has_slots):
            self._count = count
            return False
        self._count = count
        self.end_all("lost")
        return True

    def end_all(self, reason: str) -> None:
        """Closes all sequences. `free` frees their states."""
        self._drop(len(self._open), reason)
        self._gone, self._open = self._open, OrderedDict()
        self._limited = OrderedDict()
        self._sequences.clear()
        self._taken.clear()

    def free(self) -> bool:
        """Frees the states of some sequences that have ended all at once; True if more are left."""
        for _ in range(min(self._at_once, len(self._gone))):
            self._gone.popitem()
        return bool(self._gone)

    def _drop(self, count: int, reason: str) -> None:
        self._counted.value -= count
        self._ended[reason].value += count

    def lost(self, name: str) -> SequenceLostError:
        """Returns the error of a step whose sequence is not open."""
        lasted = "" if self._lifetime_s == math.inf else f"has lasted {self._lifetime_s:g} s, "
        return SequenceLostError(
            f"sequence '{name:.200}' of model {self._lane} is not open here: it was not started, "
            f"has ended, {lasted}had no step for {self._idle_s:g} s, or lost its state "
            "with its instance; start it again (sequence_start)"
        )

    def forget_over(self, now: float, most: int = ENDED_AT_ONCE) -> float | None:
        """Closes sequences that are idle, or whose lifetime is over; a number of them at most.

        Args:
            now: `time.monotonic()` second.
            most: to close; fewer if their states are large.

        Returns:
            The second at which the next may be over, `now` if some are; None if none is open.
        """
        for _ in range(self._at_once):
            if not self._open:
                return None
            name, first = next(iter((self._limited or self._open).items()))
            reason = "expired"
            if not self._limited or now < first.ends_at:
                name, first = next(iter(self._open.items()))
                reason = "idle"
                if now - first.used_at <= self._idle_s:
                    return self._next_end()
            if first.under_way:  # `ran` closes it if its lifetime is over
                if reason == "expired":
                    del self._limited[name]
                first.used_at = now
                self._open.move_to_end(name)
                continue
            self._unbind(name, reason)
            most -= 1
            if not most:
                break
        return now

    def _next_end(self) -> float:
        """Returns the second at which the next of the open sequences may be over."""
        idle = next(iter(self._open.values())).used_at + self._idle_s
        return min(idle, next(iter(self._limited.values())).ends_at) if self._limited else idle

    def _unbind(self, name: str, reason: str) -> None:
        found = self._open.pop(name, None)
        if found is None:
            return
        self._drop(1, reason)
        self._limited.pop(name, None)
        if found.slot is not None:
            self._sequences[found.slot] -= 1
            self._taken.discard((found.slot, found.row))


def _check_id(name: str, id_range: tuple[int, int], lane: Lane) -> None:
    low, high = id_range
    fits = name.isascii() and name.isdigit() and low <= int(name) <= high
    if not fits:
        raise InvalidRequestError(
            f"model {lane} takes numbers up to {high} as ids of sequences, and sequence_id is "
            f"'{name:.60}'; give such a number"
        )
