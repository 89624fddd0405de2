"""Forms batches of waiting entries. Pure: callers pass the time; no I/O, no threads.

In: entries as they arrive. Out: batches of compatible entries, and entries that are infeasible.

Rules:
- the most urgent entry is always in the next batch. Urgency is one number, fixed on arrival:
  `min(deadline, arrival + HORIZON_S) + (priority - 1) * PRIORITY_STEP_S`; so the earliest
  deadline runs first, and no entry is overtaken by one that arrives more than
  `HORIZON_S + 9 * PRIORITY_STEP_S` after it: no starvation;
- only entries of one shape, or of one padding bucket, share a batch, and only if they have the
  same inputs and the same values of inputs without a batch axis;
- steps of sequences share a batch if one slot has them, and only while its instance is idle
  (`sequence_slots.py`);
- a batch is never larger than the maximum, nor than the size with the highest throughput in rows
  (except to probe whether that has changed), nor so large that it misses its earliest deadline;
- an entry that can no longer meet its deadline is returned to the caller, never run;
- dead entries (answered, cancelled, expired) never reach a batch.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import cast

from flambeau.protocol.row_form import value_bytes
from flambeau.protocol.tensors import Array, as_bytes
from services.inference.scheduling.batch_rules import Batch, BatchRules
from services.inference.scheduling.latency import LatencyCurve, LatencyModel
from services.inference.scheduling.sequence_slots import SequenceSlots
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest

HORIZON_S = 10.0
"""Deadlines further away count as this far away: longer than interactive callers wait."""
MAX_BATCH_BYTES = 64 * 2**20
"""Most bytes of inputs that are concatenated; the largest request by default. A larger batch saves
no time, and takes as much memory again."""
TEXT_BYTES = 1024
"""Bytes that a BYTES element counts as: many are slow to convert, whatever their length."""
PRIORITY_STEP_S = HORIZON_S
"""One step of priority, in seconds of deadline: it outweighs any deadline of the same moment."""
NEAR_S = 1.0
NEAR_RUNS = 4.0
"""A deadline is near within `NEAR_S`, longer than most batches run, plus `NEAR_RUNS` times the time
to drain the queue: generous, since only the estimate of near deadlines costs time."""

_ORDER = attrgetter("order")
_Shape = tuple[int, ...]
MAX_SHARED_BYTES = 16 * 1024
"""Most bytes of shared inputs that the event loop compares; requests with more run alone."""

_Key = tuple[tuple[str, tuple[int | bytes, ...]], ...]
"""Input names and the dimensions after the rows, with the length raised to its bucket. The key of a
group has the values of shared inputs, too."""
_FIXED: _Key = ()
"""Key of the only group of a model with fixed input shapes."""


@dataclass(slots=True)
class _Group:
    """Entries that may share a batch, most urgent first."""

    key: _Key
    curve: LatencyCurve
    bucket: int | None
    slot: int | None
    entries: list[Entry] = field(default_factory=list)
    rows: int = 0
    most_rows: int = 1
    """Most rows of one batch, by `MAX_BATCH_BYTES`."""
    soonest: float = math.inf
    """Earliest deadline of all entries added since it was empty; a `time.monotonic()` second."""

    @property
    def fills_batch(self) -> bool:
        """True if there are enough rows for a batch of the best size."""
        return self.rows >= min(self.curve.best_rows, self.most_rows)


class Batcher:
    """The entries of one lane that wait for a batch.

    Args:
        rules: limits of a batch.
        latency: latency estimates, which the runner of the batches updates.
        slots: slots of sequences; None where there are none.
    """

    def __init__(
        self, rules: BatchRules, latency: LatencyModel, slots: SequenceSlots | None = None
    ) -> None:
        self._rules = rules
        self._slots = slots
        self._slot_groups = 0
        """Groups of steps of sequences."""
        self._latency = latency
        self._groups: dict[_Key, _Group] = {}
        self._only = None if rules.shapes_vary else latency.curve(_FIXED, rules.row_elements)
        """The curve of a model with fixed input shapes."""
        self._fixed: _Group | None = None
        """The group of such a model, once it has had a request."""
        self._by_length: dict[int, _Key] = {}
        """Cached keys by length, if only lengths vary."""
        self._hopeless: list[Entry] = []
        self.waiting = 0
        """Number of waiting requests."""
        self.rows = 0
        """Number of waiting rows."""
        self._last_s = 0.0
        """Approximate seconds of the last batch."""

    def add(self, entry: Entry) -> None:
        """Adds an entry, in the order of its urgency."""
        request = entry.request
        deadline, order = request.deadline, entry.enqueued_at + HORIZON_S
        if deadline < order:
            order = deadline
        # Equals `urgency`, inlined to save two calls.
        order += (request.priority - 1) * PRIORITY_STEP_S
        entry.order = order
        if self._only is not None and not request.alone and self._slots is None:
            key = _FIXED
        else:
            key = self._group_key(request)
        group = self._groups.get(key) or self._new_group(key, request)
        entries = group.entries
        if not entries or entries[-1].order <= order:
            entries.append(entry)
        else:
            insort(entries, entry, key=_ORDER)
        if deadline < group.soonest:
            group.soonest = deadline
        rows = request.rows
        group.rows += rows
        self.rows += rows
        self.waiting += request.merged

    def remove(self, entry: Entry) -> bool:
        """Removes an entry. Returns True if it was waiting here."""
        group = self._groups.get(self._group_key(entry.request))
        if group is None:
            return False
        entries = group.entries
        for i in range(bisect_left(entries, entry.order, key=_ORDER), len(entries)):
            if entries[i] is entry:
                self._took(group, i, i + 1, entry.request.rows)
                return True
            if entries[i].order != entry.order:
                break
        return False

    def waiting_since(self, moment: float) -> list[Entry]:
        """Returns the entries that have waited since a `time.monotonic()` second, or longer."""
        groups = self._groups.values()
        return [one for group in groups for one in group.entries if one.enqueued_at <= moment]

    def is_far(self, request: InferRequest, slack: float) -> bool:
        """Returns True if a deadline is so far away that `finish_s` need not be computed.

        Args:
            request: a request that is not added yet.
            slack: seconds until its deadline.
        """
        if slack < NEAR_S:
            return False
        curve = self._only or self._curve(self._key(request))
        batches = 1 + self.rows / curve.best_rows
        return slack >= NEAR_S + NEAR_RUNS * (batches * curve.best_s + self._last_s)

    def finish_s(self, request: InferRequest, now: float, runs_at_once: float = 1.0) -> float:
        """Returns the seconds from when the lane is free until this request would be answered.

        Its batch and those ahead are assumed to have the best size that still leaves time to wait
        for one such batch and to run another. If a request were judged as if it ran alone, it would
        be admitted with so little time that its batch had to stay small: that delays the requests
        behind it, whose batches then stay small too, so that throughput collapses under overload.

        Args:
            request: a request that is not added yet.
            now: `time.monotonic()` second.
            runs_at_once: batches of this lane that the device runs concurrently; below 1 if
                other lanes share it.
        """
        curve = self._curve(self._key(request))
        before = self._rows_before(urgency(request, now))
        together = curve.rows_within((request.deadline - now) / 2)
        own_s = curve.cautious_s(self._rules.padded_rows(max(together, request.rows)))
        if before + request.rows <= together:
            return own_s
        batch_s = curve.cautious_s(self._rules.padded_rows(together))
        return before / together * batch_s / runs_at_once + own_s

    @property
    def row_s(self) -> float:
        """Learned seconds per row in a batch of the best size; 0 if shapes vary."""
        curve = self._only
        return curve.best_s / curve.best_rows if curve is not None else 0.0

    def decay_estimate(self, request: InferRequest) -> None:
        """Lowers the estimate for requests like this one, which an idle lane refused."""
        self._curve(self._key(request)).decay_estimate(self._rules.padded_rows(request.rows))

    def ready_at(self, now: float) -> float | None:
        """Returns when to form the next batch: now, later (`wait_s`), or None if nothing waits."""
        groups = self._runnable()
        if not groups:
            return None
        if not self._rules.wait_s:
            return now
        return min(self._group_ready_at(group, now) for group in groups)

    def next_s(self, now: float) -> float:
        """Returns the expected seconds of the batch that `next_batch` would form, or infinity."""
        group = self._most_urgent(now)
        if group is None:
            return math.inf
        rows = max(min(group.rows, group.curve.best_rows), group.entries[0].request.rows)
        return group.curve.expected_s(self._rules.padded_rows(rows))

    def fills_batch(self, now: float) -> bool:
        """Returns True if waiting would not enlarge the batch that `next_batch` would return."""
        group = self._most_urgent(now)
        return group is not None and group.fills_batch

    def next_batch(self, now: float, within_s: float = math.inf) -> Batch | None:
        """Returns a batch of the most urgent entry and those to run with it; None if none is ready.

        An entry that does not fit ends the batch, so that small requests do not starve a large one.

        Args:
            now: `time.monotonic()` second.
            within_s: longest time that a run may take; None is returned if the most urgent entry
                alone takes longer.
        """
        while (group := self._most_urgent(now)) is not None:
            if within_s < math.inf:
                least = self._rules.padded_rows(group.entries[0].request.rows)
                if group.curve.cautious_s(least) > within_s:
                    return None
            count, rows = self._fill(group, now, within_s)
            if not count:
                continue  # its most urgent entries were dead or infeasible, and were removed
            entries = group.entries[:count]
            self._took(group, 0, count, rows)
            self._last_s = group.curve.best_s
            return Batch(
                entries,
                rows,
                self._rules.padded_rows(rows),
                self._padded_length(entries, group.bucket),
                group.curve,
                group.slot,
            )
        return None

    def take_hopeless(self) -> list[Entry]:
        """Returns, and forgets, the entries that batch formation found to miss their deadline."""
        hopeless, self._hopeless = self._hopeless, []
        return hopeless

    def _fill(self, group: _Group, now: float, within_s: float) -> tuple[int, int]:
        """Returns how many of the most urgent entries form the batch, and their rows.

        Removes the first dead or infeasible entry that it meets, and then returns (0, 0).
        """
        curve = group.curve
        most = min(curve.rows_to_run(group.rows), group.most_rows)
        if within_s < math.inf:
            most = min(most, curve.rows_within(within_s))
        padded = self._rules.padded_rows
        # A deadline after this cannot be missed and does not limit the batch size.
        far = now + curve.longest_s()
        if group.soonest >= far and group.rows == len(group.entries):
            # The usual case: all entries have one row and a far deadline.
            together = group.entries[:most]
            for entry in together:
                if entry.dead:
                    break
            else:
                return len(together), len(together)
        earliest, rows, count = math.inf, 0, 0
        for entry in group.entries:
            request = entry.request
            deadline, total = request.deadline, rows + request.rows
            if entry.dead or (
                deadline < far and now + curve.expected_s(padded(request.rows)) > deadline
            ):
                if not entry.dead:
                    self._hopeless.append(entry)
                self._took(group, count, count + 1, request.rows)
                return 0, 0
            if count and total > most:
                break
            if deadline < earliest:
                earliest = deadline
            if count and earliest < far and now + curve.cautious_s(padded(total)) > earliest:
                break
            rows, count = total, count + 1
            if rows >= most:
                break
        return count, rows

    def _padded_length(self, entries: list[Entry], bucket: int | None) -> int | None:
        if self._rules.padding is None or bucket is None:
            return None
        if self._rules.padding.static:
            return bucket
        return max(entry.request.length or 0 for entry in entries)

    def _took(self, group: _Group, start: int, stop: int, rows: int) -> None:
        """Removes entries of `rows` rows from a group, and the group if it is empty then."""
        requests = stop - start
        if rows > requests:  # they may be merged ones
            requests = sum([entry.request.merged for entry in group.entries[start:stop]])
        self.waiting -= requests
        del group.entries[start:stop]
        group.rows -= rows
        self.rows -= rows
        if not group.entries:
            del self._groups[group.key]
            self._slot_groups -= group.slot is not None

    def _most_urgent(self, now: float) -> _Group | None:
        """Returns the group with the most urgent entry, among those that have waited `wait_s`."""
        groups = self._runnable()
        if self._rules.wait_s:
            groups = [group for group in groups if self._group_ready_at(group, now) <= now]
        elif len(groups) == 1:
            return next(iter(groups))
        return min(groups, key=lambda group: group.entries[0].order, default=None)

    def _runnable(self) -> Collection[_Group]:
        """Returns the groups whose instance is idle, if they need a certain one."""
        groups = self._groups.values()
        if not self._slot_groups:
            return groups
        assert self._slots is not None
        idle = self._slots.idle()
        return [group for group in groups if group.slot is None or group.slot in idle]

    def take_slot(self, slot: int) -> list[Entry]:
        """Removes the waiting steps of a slot's sequences, and returns them."""
        found: list[Entry] = []
        for group in [one for one in self._groups.values() if one.slot == slot]:
            found += group.entries
            self._took(group, 0, len(group.entries), group.rows)
        return found

    def _group_ready_at(self, group: _Group, now: float) -> float:
        """Returns when a group is ready: it fills a batch, or an entry has waited long enough.

        That is `wait_s`, but at most half of the time that the run leaves until the deadline: the
        other half is for the transfer of the request and the response.
        """
        rules, curve = self._rules, group.curve
        if group.fills_batch:
            return now
        run_s = curve.cautious_s(rules.padded_rows(group.rows))
        return min(
            entry.enqueued_at
            + min(rules.wait_s, (entry.request.deadline - run_s - entry.enqueued_at) / 2)
            for entry in group.entries
        )

    def _rows_before(self, order: float) -> int:
        """Returns the waiting rows that are at least as urgent; approximate if rows differ."""
        before = 0
        for group in self._groups.values():
            entries = group.entries
            if entries[-1].order <= order:
                before += group.rows
            else:
                at = bisect_right(entries, order, key=_ORDER)
                before += group.rows * at // len(entries)
        return before

    def _new_group(self, key: _Key, request: InferRequest) -> _Group:
        if key is _FIXED and self._fixed is not None:
            group = self._groups[key] = self._fixed
            group.soonest = math.inf
            return group
        slot = self._slot(request)
        self._slot_groups += slot is not None
        group = _Group(key, self._curve(self._key(request)), self._bucket(request), slot)
        group.most_rows = _most_rows(request, self._rules.state_bytes)
        self._groups[key] = group
        if key is _FIXED and self._only is not None:
            self._fixed = group
        return group

    def _curve(self, key: _Key) -> LatencyCurve:
        if self._only is not None:
            return self._only
        if (group := self._groups.get(key)) is not None:
            return group.curve
        return self._latency.curve(key, sum(math.prod(cast(_Shape, shape)) for _, shape in key))

    def _bucket(self, request: InferRequest) -> int | None:
        padding = self._rules.padding
        if padding is None or request.length is None:
            return None
        return padding.bucket_of(request.length)

    def _group_key(self, request: InferRequest) -> _Key:
        """Returns the key of an entry's group; an entry that runs alone has a unique key."""
        key = self._key(request)
        if self._rules.compares_values:
            assert self._rules.batch_axes is not None
            key = (*key, ("", shared_values(request, self._rules.batch_axes)))
        if (slot := self._slot(request)) is not None:
            key = (*key, ("", (slot,)))
        return (*key, (request.request_id, ())) if request.alone else key

    def _slot(self, request: InferRequest) -> int | None:
        return None if self._slots is None else self._slots.of(request)

    def _key(self, request: InferRequest) -> _Key:
        """Returns what a batch has in common: all shapes, with the length raised to its bucket."""
        rules, length = self._rules, request.length
        if not rules.shapes_vary:
            return _FIXED
        if not rules.only_lengths_vary or length is None:
            return self._shapes(request)
        key = self._by_length.get(length)
        if key is None:
            key = self._by_length[length] = self._shapes(request)
        return key

    def _shapes(self, request: InferRequest) -> _Key:
        padding, bucket = self._rules.padding, self._bucket(request)
        if (axes := self._rules.batch_axes) is not None:
            return tuple(
                [(name, _row_shape(request.inputs[name].shape, axes[name]))
                 for name in sorted(request.inputs)]
            )  # fmt: skip
        shapes = []
        for name in sorted(request.inputs):
            shape = request.inputs[name].shape[1:]
            if padding is not None and bucket is not None:
                if padding.is_optional(name):
                    continue  # derived from the length, and may be absent
                axis = padding.inputs.get(name)
                if axis is not None:
                    shape = (*shape[: axis - 1], bucket, *shape[axis:])
            shapes.append((name, shape))
        return tuple(shapes)


def _row_shape(shape: _Shape, axis: int | None) -> _Shape:
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


def shared_values(
    request: InferRequest, batch_axes: Mapping[str, int | None]
) -> tuple[int | bytes, ...]:
    """Returns a key that only requests with the same values of all shared inputs have in common.

    Args:
        request: its inputs fit the signature.
        batch_axes: the batch axis of each input, None for a shared one.
    """
    shared = [array for name, array in sorted(request.inputs.items()) if batch_axes[name] is None]
    left = MAX_SHARED_BYTES
    values = []
    for array in shared:
        if array.dtype.hasobject and array.size <= left:
            left -= sum([4 + len(as_bytes(element)) for element in array.ravel()])
        else:
            left -= array.nbytes
        if left < 0:
            return (-1, id(request))  # alone: no other waiting request is this object
        values.append(value_bytes(array))
    return tuple(values)


def _most_rows(request: InferRequest, further_bytes: int) -> int:
    """Returns the maximum batch size for rows of a request's size, by `MAX_BATCH_BYTES`."""
    row_bytes = sum([_bytes_of(array) for array in request.inputs.values()]) // request.rows
    row_bytes += further_bytes
    return max(1, MAX_BATCH_BYTES // max(1, row_bytes))


def _bytes_of(array: Array) -> int:
    return array.size * TEXT_BYTES if array.dtype.hasobject else array.nbytes


def urgency(request: InferRequest, enqueued_at: float) -> float:
    """Returns a request's place in the queue: a smaller number runs earlier (see the module)."""
    due = min(request.deadline, enqueued_at + HORIZON_S)
    return due + (request.priority - 1) * PRIORITY_STEP_S
