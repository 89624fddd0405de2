"""Small requests of one turn of an edge's loop, merged into one request of the model process.

In: entries. Out: lists of entries whose rows go together; and from the reply to them, a reply for
each. The model process then has one request to admit and to answer in place of many.

Rules:
- only requests of fast models are merged. Rows that take longer gain nothing by it, and the batcher
  chooses better which of them to run together;
- merged requests have one lane, one priority, the same outputs, and nearly one deadline;
- an error of the model may be due to one request: all of them are sent again, one by one.
"""

import math
from collections.abc import Iterable, Mapping

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES, Array
from services.queueing.memory_queue import Entry
from services.queueing.records import (
    LOWEST_PRIORITY,
    PYTHON_PLATFORM,
    InferReply,
    InferRequest,
    Lane,
    ServedVersion,
)
from services.queueing.shared_memory.messages import ReplyMessage, TensorMessage
from services.queueing.shared_memory.tensor_blocks import DATATYPE_NAMES

MERGED_ROWS = 32
"""Rows of a merged request at most: to answer as many requests takes an edge some 0.3 ms."""
MERGED_BYTES = 64 * 1024
"""Bytes of its inputs at most, which lie in the message."""
FAST_ROW_S = 50e-6
"""A model is fast if a row of its last batch took less. The hop costs about as much."""
DEADLINES_APART_S = 0.005
"""Deadlines of one merged request differ by less. It has the latest; each edge keeps its own."""

_Key = tuple[Lane, int, tuple[str, ...], int]


class MergedRequests:
    """The requests of a turn that are merged at its end."""

    def __init__(self) -> None:
        self._most_rows: dict[Lane, int] = {}
        """Rows of a merged request, by lane; without lanes whose requests cannot be merged."""
        self._fast: set[Lane] = set()
        self._waiting: dict[_Key, list[Entry]] = {}

    def serve(self, versions: Iterable[ServedVersion]) -> None:
        """Takes the versions that are served now, in place of those before."""
        self._most_rows = {
            lane: rows
            for served in versions
            if (rows := _most_rows(served)) > 1
            for lane in (served.lane, *(known.lane for known in served.artifacts))
        }

    def learn(self, lane: Lane, reply: ReplyMessage) -> None:
        """Learns from a reply whether a model is fast, and gives one answer to a request."""
        if reply.execution_s <= FAST_ROW_S * reply.batch_rows and reply.is_last and not reply.part:
            self._fast.add(lane)
        else:
            self._fast.discard(lane)

    def add(self, entry: Entry) -> bool:
        """Takes an entry if it may be merged; the caller sends it alone otherwise."""
        request = entry.request
        lane = request.lane
        most = self._most_rows.get(lane, 0) if lane in self._fast else 0
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
        return True

    def take(self) -> list[list[Entry]]:
        """Returns the entries of the turn that still wait, those that go together in one list."""
        waiting, self._waiting = self._waiting, {}
        found: list[list[Entry]] = []
        for (lane, *_), entries in waiting.items():
            if len(entries) == 1:
                if not entries[0].dead:
                    found.append(entries)
                continue
            most, rows = self._most_rows.get(lane, 1), math.inf
            for entry in entries:
                if entry.dead:
                    continue
                rows += entry.request.rows
                if rows > most:
                    found.append([])
                    rows = entry.request.rows
                found[-1].append(entry)
        return found


def merged_inputs(requests: list[InferRequest]) -> tuple[TensorMessage, ...]:
    """Returns the inputs of merged requests: their rows, one after another."""
    rows = sum([request.rows for request in requests])
    records = []
    for name, array in requests[0].inputs.items():
        data = b"".join([request.inputs[name].tobytes() for request in requests])
        records.append(
            TensorMessage(name, DATATYPE_NAMES[array.dtype], (rows, *array.shape[1:]), data)
        )
    return tuple(records)


def replies(
    entries: list[Entry], message: ReplyMessage, outputs: Mapping[str, Array], *, copied: bool
) -> Iterable[tuple[Entry, InferReply]]:
    """Yields the reply of each merged request.

    Args:
        entries: the requests, in the order of their rows.
        message: the reply to all of them.
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
                datatypes=message.datatypes,
                batch_rows=message.batch_rows,
                queue_s=message.queue_s,
                execution_s=message.execution_s,
            ),
        )


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
