"""Forms batches out of waiting entries. Pure: the time comes from outside; no I/O, no threads.

In: entries as they arrive. Out: batches of compatible entries, and entries that are hopeless.

Rules kept here:
- the most urgent entry is always in the next batch. Urgency is one number, fixed on arrival:
  `min(deadline, arrival + HORIZON_S) + (priority - 1) * PRIORITY_STEP_S`; so the earliest
  deadline goes first, and nothing is overtaken by what arrives more than
  `HORIZON_S + 9 * PRIORITY_STEP_S` after it: no starvation;
- only entries of one shape share a batch, or of one padding bucket;
- a batch is never larger than allowed, nor than the size at which the most rows a second come
  out (but to learn whether that is still so), nor so large that its earliest deadline would pass;
- an entry that can no longer make its deadline is handed back, never run;
- dead entries (answered, cancelled, out of time) never reach a batch.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from model_store.signature import Padding, Signature
from services.inference.scheduling.latency import LatencyCurve, LatencyModel
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest

HORIZON_S = 10.0
"""A deadline further away than this counts as this far away."""
MAX_BATCH_BYTES = 64 * 2**20
"""Of inputs that are joined, the largest request by default: beyond it a batch saves nothing, and
takes as much memory again."""
PRIORITY_STEP_S = 10.0
"""What one step of priority is worth, in seconds of deadline."""

NEAR_S = 1.0
NEAR_RUNS = 4.0
"""A deadline is near if it lies within so much, and so many times what all that waits takes."""

_ORDER = attrgetter("order")
_Key = tuple[tuple[str, tuple[int, ...]], ...]
"""Input names and the dimensions behind the rows, with the length raised to its bucket."""
_FIXED: _Key = ()
"""The group of a model all of whose inputs have one shape."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Entries that run together."""

    entries: list[Entry]
    rows: int
    """Of all entries."""
    padded_rows: int
    """What the backend is given."""
    length: int | None
    """What varying lengths are padded to; None when nothing is."""
    curve: LatencyCurve
    """Where to learn from the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What batches one lane may form."""

    max_rows: int
    preferred_rows: tuple[int, ...] = ()
    """Sizes to pad a batch up to, for engines built for fixed ones; ascending."""
    wait_s: float = 0.0
    """How long the first entry may wait for company; 0 waits for nothing."""
    padding: Padding | None = None
    shapes_vary: bool = False
    """Whether any dimension but the batch differs from request to request."""
    only_lengths_vary: bool = False
    """Whether those that do are all the length, which `padding` makes one of a few."""
    row_elements: int = 1
    """Input elements of a row, where shapes do not vary."""

    def padded_rows(self, rows: int) -> int:
        """What a batch of so many rows is filled up to."""
        return next((size for size in self.preferred_rows if size >= rows), rows)

    def alone(self, entry: Entry, batch: Batch) -> Batch:
        """A batch of one of a batch's entries."""
        static = self.padding is not None and self.padding.static
        length = batch.length if static else entry.request.length
        rows = entry.request.rows
        return Batch([entry], rows, self.padded_rows(rows), length, batch.curve)


def batch_rules(
    signature: Signature, *, preferred_rows: tuple[int, ...] = (), wait_s: float = 0.0
) -> BatchRules:
    """The rules a signature gives, and what the operator chose beside it."""
    tails = [spec.shape[1:] for spec in signature.inputs]
    vary = any(-1 in tail for tail in tails)
    padding = signature.padding
    only_lengths = padding is not None and all(
        size != -1 or axis == padding.axis_of(spec.name)
        for spec in signature.inputs
        for axis, size in enumerate(spec.shape[1:], 1)
    )
    return BatchRules(
        max_rows=signature.max_batch_size,
        preferred_rows=tuple(s for s in sorted(preferred_rows) if s <= signature.max_batch_size),
        wait_s=wait_s,
        padding=padding,
        shapes_vary=vary,
        only_lengths_vary=only_lengths,
        row_elements=1 if vary else sum(math.prod(tail) for tail in tails),
    )


@dataclass(slots=True)
class _Group:
    """Entries that may share a batch, most urgent first."""

    key: _Key
    curve: LatencyCurve
    bucket: int | None
    entries: list[Entry] = field(default_factory=list)
    rows: int = 0
    most_rows: int = 1
    """Of one batch, by `MAX_BATCH_BYTES`."""
    soonest: float = math.inf
    """The earliest deadline of all that have been here; a `time.monotonic()` second."""

    @property
    def fills_batch(self) -> bool:
        """Whether there are as many rows as are best run together."""
        return self.rows >= min(self.curve.best_rows, self.most_rows)


class Batcher:
    """The entries of one lane that wait for a batch.

    Args:
        rules: what batches may be formed.
        latency: how long they take; learned by whoever runs them.
    """

    def __init__(self, rules: BatchRules, latency: LatencyModel) -> None:
        self._rules = rules
        self._latency = latency
        self._groups: dict[_Key, _Group] = {}
        self._only = None if rules.shapes_vary else latency.curve(_FIXED, rules.row_elements)
        """The curve of a model all of whose inputs have one shape."""
        self._only_most_rows = 0
        """The most rows of a batch of such a model; 0 until its first request."""
        self._by_length: dict[int, _Key] = {}
        """Keys, where the length alone decides."""
        self._hopeless: list[Entry] = []
        self.waiting = 0
        """Entries that wait."""
        self.rows = 0
        """Rows that wait."""
        self._last_s = 0.0
        """What the last batch takes, about."""

    def add(self, entry: Entry) -> None:
        """Sorts an entry in; its deadline and arrival decide where."""
        request = entry.request
        deadline, order = request.deadline, entry.enqueued_at + HORIZON_S
        if deadline < order:
            order = deadline
        # As `urgency` gives it, two calls less.
        order += (request.priority - 1) * PRIORITY_STEP_S
        entry.order = order
        key = _FIXED if self._only is not None and not request.alone else self._group_key(request)
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
        self.waiting += 1

    def remove(self, entry: Entry) -> bool:
        """Forgets an entry. Returns whether it was waiting here."""
        group = self._groups.get(self._group_key(entry.request))
        if group is None:
            return False
        entries = group.entries
        for i in range(bisect_left(entries, entry.order, key=_ORDER), len(entries)):
            if entries[i] is entry:
                self._took(group, i, i + 1)
                return True
            if entries[i].order != entry.order:
                break
        return False

    def is_far(self, request: InferRequest, slack: float) -> bool:
        """Whether a deadline is in no danger, so that `finish_s` need not be asked.

        Args:
            request: not yet added.
            slack: seconds until its deadline.
        """
        if slack < NEAR_S:
            return False
        curve = self._only or self._curve(self._key(request))
        batches = 1 + self.rows / curve.best_rows
        return slack >= NEAR_S + NEAR_RUNS * (batches * curve.best_s + self._last_s)

    def finish_s(self, request: InferRequest, now: float, runs_at_once: float = 1.0) -> float:
        """Seconds from when the lane is free until a request that arrives now would be done.

        Its batch, and those ahead, are taken to be as large as is best and leaves time for one
        such batch to run and another to be waited for. Judged as if it ran alone, it would be let
        in with so little time that its batch had to stay small: that makes those behind it late,
        whose batches then stay small too, and under overload little is done.

        Args:
            request: not yet added.
            now: `time.monotonic()` second.
            runs_at_once: batches of this lane that the device runs side by side; below 1 when
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
        """Seconds a row takes in the batch that is best, as learned; 0 where shapes vary."""
        curve = self._only
        return curve.best_s / curve.best_rows if curve is not None else 0.0

    def decay_estimate(self, request: InferRequest) -> None:
        """Expects less of requests like this one: it was refused by an idle lane."""
        self._curve(self._key(request)).decay_estimate(self._rules.padded_rows(request.rows))

    def ready_at(self, now: float) -> float | None:
        """When to form the next batch: now, later (`wait_s`), or None when nothing waits."""
        if not self._groups:
            return None
        if not self._rules.wait_s:
            return now
        return min(self._group_ready_at(group, now) for group in self._groups.values())

    def next_s(self, now: float) -> float:
        """About how long the batch takes that `next_batch` would give; infinity for none."""
        group = self._most_urgent(now)
        if group is None:
            return math.inf
        rows = max(min(group.rows, group.curve.best_rows), group.entries[0].request.rows)
        return group.curve.expected_s(self._rules.padded_rows(rows))

    def fills_batch(self, now: float) -> bool:
        """Whether waiting would make the batch that `next_batch` would give no larger."""
        group = self._most_urgent(now)
        return group is not None and group.fills_batch

    def next_batch(self, now: float, within_s: float = math.inf) -> Batch | None:
        """The most urgent entry and all that should run with it; None when nothing is ready.

        An entry that does not fit ends the batch, so that a large request is never overtaken for
        ever by small ones.

        Args:
            now: `time.monotonic()` second.
            within_s: the most a run may take; None is returned if the most urgent entry alone
                takes longer.
        """
        while (group := self._most_urgent(now)) is not None:
            if within_s < math.inf:
                least = self._rules.padded_rows(group.entries[0].request.rows)
                if group.curve.cautious_s(least) > within_s:
                    return None
            count, rows = self._fill(group, now, within_s)
            if not count:
                continue  # its most urgent entries were hopeless, and are gone
            entries = group.entries[:count]
            self._took(group, 0, count)
            self._last_s = group.curve.best_s
            return Batch(
                entries,
                rows,
                self._rules.padded_rows(rows),
                self._padded_length(entries, group.bucket),
                group.curve,
            )
        return None

    def take_hopeless(self) -> list[Entry]:
        """Entries found, while forming batches, to have no chance of making their deadline."""
        hopeless, self._hopeless = self._hopeless, []
        return hopeless

    def _fill(self, group: _Group, now: float, within_s: float) -> tuple[int, int]:
        """How many of the most urgent entries form the batch, and their rows.

        Dead and hopeless entries met on the way are removed; if that changed the group, (0, 0).
        """
        curve = group.curve
        most = min(curve.rows_to_run(group.rows), group.most_rows)
        if within_s < math.inf:
            most = min(most, curve.rows_within(within_s))
        padded = self._rules.padded_rows
        # A deadline beyond this can neither be missed nor shrink the batch.
        far = now + curve.longest_s()
        if group.soonest >= far and group.rows == len(group.entries):
            # The usual case: rows of one, all of them with time to spare.
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
                self._took(group, count, count + 1)
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

    def _took(self, group: _Group, start: int, stop: int) -> None:
        """Removes entries from a group, and an empty group from the lane."""
        rows = sum([entry.request.rows for entry in group.entries[start:stop]])
        del group.entries[start:stop]
        group.rows -= rows
        self.rows -= rows
        self.waiting -= stop - start
        if not group.entries:
            del self._groups[group.key]

    def _most_urgent(self, now: float) -> _Group | None:
        """The group, among those that wait for no company any more, with the most urgent entry."""
        groups: Iterable[_Group] = self._groups.values()
        if self._rules.wait_s:
            groups = [group for group in groups if self._group_ready_at(group, now) <= now]
        elif len(self._groups) == 1:
            return next(iter(groups))
        return min(groups, key=lambda group: group.entries[0].order, default=None)

    def _group_ready_at(self, group: _Group, now: float) -> float:
        """When a group has waited enough: it fills a batch, or its first has waited its time.

        That is `wait_s`, but no more than half of what a run leaves of its deadline: the other
        half is for the way there and back.
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
        """Rows that wait and are at least as urgent; about so many, where rows differ."""
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
        curve = self._curve(self._key(request))
        group = self._groups[key] = _Group(key, curve, self._bucket(request))
        group.most_rows = self._only_most_rows or _most_rows(request)
        if self._only is not None:
            self._only_most_rows = group.most_rows
        return group

    def _curve(self, key: _Key) -> LatencyCurve:
        if self._only is not None:
            return self._only
        if (group := self._groups.get(key)) is not None:
            return group.curve
        return self._latency.curve(key, sum(math.prod(shape) for _, shape in key))

    def _bucket(self, request: InferRequest) -> int | None:
        padding = self._rules.padding
        if padding is None or request.length is None:
            return None
        return padding.bucket_of(request.length)

    def _group_key(self, request: InferRequest) -> _Key:
        """What entries of a group have in common; one that runs alone has nobody's."""
        key = self._key(request)
        return (*key, (request.request_id, ())) if request.alone else key

    def _key(self, request: InferRequest) -> _Key:
        """What must agree within a batch: every shape, with the length raised to its bucket."""
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
        shapes = []
        for name in sorted(request.inputs):
            shape = request.inputs[name].shape[1:]
            if padding is not None and bucket is not None:
                if padding.is_optional(name):
                    continue  # it follows from the length, and may be left out
                axis = padding.inputs.get(name)
                if axis is not None:
                    shape = (*shape[: axis - 1], bucket, *shape[axis:])
            shapes.append((name, shape))
        return tuple(shapes)


def _most_rows(request: InferRequest) -> int:
    """How many rows like those of a request are joined at most."""
    row_bytes = sum([array.nbytes for array in request.inputs.values()]) // request.rows
    return max(1, MAX_BATCH_BYTES // max(1, row_bytes))


def urgency(request: InferRequest, enqueued_at: float) -> float:
    """Where a request stands in line: smaller runs earlier (the rules are at the top)."""
    due = min(request.deadline, enqueued_at + HORIZON_S)
    return due + (request.priority - 1) * PRIORITY_STEP_S
