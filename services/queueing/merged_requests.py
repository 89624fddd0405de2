"""Small requests that are sent together, merged into one request of the process with the model.

In: entries. Out: lists of entries whose rows go together; and from the reply to them, a reply for
each. The process with the model then has one request to receive, admit and answer in place of many.

Rules:
- only requests of fast models are merged. Rows that take longer gain nothing by it, and the batcher
  chooses better which of them to run together;
- merged requests have one lane, one priority, the same outputs, and nearly one deadline;
- an error of the model may be due to one request: all of them are sent again, one by one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES, Array
from services.errors import (
    BackendError,
    DeadlineExceededError,
    DeviceError,
    ServingError,
    WorkerProcessDiedError,
)
from services.queueing.memory_queue import Entry, deadline_exceeded
from services.queueing.records import (
    LOWEST_PRIORITY,
    PYTHON_PLATFORM,
    InferReply,
    InferRequest,
    Lane,
    ServedVersion,
)

MERGED_ROWS = 32
"""Rows of a merged request at most: to answer as many requests takes a gateway some 0.3 ms."""
MERGED_BYTES = 64 * 1024
"""Bytes of its inputs at most, which lie in the message."""
FAST_ROW_S = 50e-6
"""A model is fast if a row of one of its last batches took less. The hop costs about as much."""
SLOW_REPLIES = 64
"""Replies of slower batches after which a model is no longer fast. On cores that others use, too, a
run takes milliseconds now and then; without merging there are more of those (docs/adr/0067)."""
DEADLINES_APART_S = 0.005
"""Deadlines of one merged request differ by less. It has the latest; the gateway keeps each."""

_Key = tuple[Lane, int, tuple[str, ...], int]


class Answered(Protocol):
    """Facts of a reply about the batch it comes from; as in `InferReply`."""

    @property
    def datatypes(self) -> Mapping[str, str]:
        """Datatypes by output."""

    @property
    def batch_rows(self) -> int:
        """Rows of the whole batch."""

    @property
    def queue_s(self) -> float:
        """Seconds in the queue."""

    @property
    def execution_s(self) -> float:
        """Seconds of the run."""


class MergedRequests:
    """The requests that wait to be merged and sent.

    Attributes:
        most_rows: rows of a merged request, by lane; without lanes whose requests cannot be merged.
        waiting: number of requests that wait, with those that died meanwhile.
    """

    def __init__(self, most_rows: Mapping[Lane, int] | None = None) -> None:
        self.most_rows = most_rows if most_rows is not None else {}
        self.waiting = 0
        self._fast: dict[Lane, int] = {}
        """Replies of slower batches that each fast model may still give."""
        self._waiting: dict[_Key, list[Entry]] = {}

    def learn(self, lane: Lane, reply: Answered, *, is_only: bool) -> None:
        """Learns from a reply whether a model is fast, and gives one answer to a request."""
        if not is_only:
            self._fast.pop(lane, None)
        elif reply.execution_s <= FAST_ROW_S * reply.batch_rows:
            self._fast[lane] = SLOW_REPLIES
        elif lane in self._fast:
            self._fast[lane] -= 1
            if not self._fast[lane]:
                del self._fast[lane]

    def add(self, entry: Entry) -> bool:
        """Takes an entry if it may be merged; the caller sends it alone otherwise."""
        request = entry.request
        lane = request.lane
        most = self.most_rows.get(lane, 0) if lane in self._fast else 0
        if (
            request.rows > most
            or request.priority > LOWEST_PRIORITY
            or request.trace is not None
            or request.sequence is not None
            or request.accuracy
        ):
            return False
        soon = int(request.deadline / DEADLINES_APART_S)
        key = (lane, request.priority, tuple(request.outputs), soon)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [entry]
        else:
            waiting.append(entry)
        self.waiting += 1
        return True

    def take(self) -> list[list[Entry]]:
        """Returns the entries that still wait, those that go together in one list."""
        waiting, self._waiting, self.waiting = self._waiting, {}, 0
        found: list[list[Entry]] = []
        for (lane, *_), entries in waiting.items():
            if len(entries) == 1:
                if not entries[0].dead:
                    found.append(entries)
                continue
            most, rows = self.most_rows.get(lane, 1), math.inf
            for entry in entries:
                if entry.dead:
                    continue
                rows += entry.request.rows
                if rows > most:
                    found.append([])
                    rows = entry.request.rows
                found[-1].append(entry)
        return found


def merged_request(requests: Sequence[InferRequest]) -> InferRequest:
    """Returns the request that stands for all, with the inputs of the first."""
    return msgspec.structs.replace(
        requests[0],
        rows=sum([request.rows for request in requests]),
        deadline=max([request.deadline for request in requests]),
        merged=len(requests),
    )


def may_be_due_to_one(error: ServingError) -> bool:
    """Returns True if one of several merged requests may be the cause of an error."""
    if isinstance(error, WorkerProcessDiedError):
        return True
    return isinstance(error, BackendError) and not isinstance(error, DeviceError)


def refuse_each(entries: Iterable[Entry], error: ServingError) -> None:
    """Answers merged requests with an error that is not due to one of them."""
    for entry in entries:
        is_late = isinstance(error, DeadlineExceededError)
        entry.refuse(deadline_exceeded(entry.request) if is_late else error)


def replies(
    entries: Sequence[Entry], reply: Answered, outputs: Mapping[str, Array], *, copied: bool
) -> Iterable[tuple[Entry, InferReply]]:
    """Yields the reply of each merged request.

    Args:
        entries: the requests, in the order of their rows.
        reply: the reply to all of them.
        outputs: its arrays.
        copied: True if an answer that waits must not keep the arrays of the others.
    """
    start = 0
    for entry in entries:
        stop = start + entry.request.rows
        parts = {name: array[start:stop] for name, array in outputs.items()}
        if copied:
            parts = {name: part.copy() for name, part in parts.items()}
        start = stop
        yield (
            entry,
            InferReply(
                lane=entry.request.lane,
                outputs=parts,
                datatypes=reply.datatypes,
                batch_rows=reply.batch_rows,
                queue_s=reply.queue_s,
                execution_s=reply.execution_s,
            ),
        )


def rows_that_merge(versions: Iterable[ServedVersion]) -> dict[Lane, int]:
    """Returns the rows of a merged request by lane, without lanes whose requests do not merge."""
    return {
        lane: rows
        for served in versions
        if (rows := _most_rows(served)) > 1
        for lane in (served.lane, *(known.lane for known in served.artifacts))
    }


def _most_rows(served: ServedVersion) -> int:
    """Returns the rows of a merged request; 0 if a version's requests cannot be merged."""
    signature = served.signature
    if signature is None or served.is_pipeline or served.platform == PYTHON_PLATFORM:
        return 0
    row_bytes = _row_bytes(signature)
    if row_bytes is None:
        return 0
    return min(MERGED_ROWS, signature.max_batch_size, MERGED_BYTES // max(1, row_bytes))


def _row_bytes(signature: Signature) -> int | None:
    """Returns the bytes of a row's inputs; None if rows of two requests may differ in more."""
    specs = signature.inputs
    if signature.padding is not None or not signature.is_plain:
        return None
    if any(size < 0 for spec in specs for size in spec.shape[1:]):
        return None
    if any(spec.datatype == "BYTES" for spec in (*specs, *signature.outputs)):
        return None
    return sum(math.prod(spec.shape[1:]) * DATATYPES[spec.datatype].itemsize for spec in specs)
