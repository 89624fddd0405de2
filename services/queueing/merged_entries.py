"""Entries of a lane that are merged on their way to another process.

In: entries of a fast model, and the outcomes of those they were merged into. Out: entries to send
in their place, and an outcome for each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from flambeau.protocol.tensors import Array
from services.errors import ServingError
from services.queueing.memory_queue import Entry, Outcome
from services.queueing.merged_requests import (
    MergedRequests,
    may_be_due_to_one,
    merged_request,
    refuse_each,
    replies,
)
from services.queueing.records import InferReply, InferRequest, Lane

SHARED_BYTES = 256 * 1024
"""Outputs of more bytes are copied: an answer that waits for its caller keeps only its own."""


class _Whole(Entry):
    """The entry of a merged request.

    Attributes:
        parts: entries of its requests, in the order of their rows.
        wanted: number of those whose callers wait.
    """

    __slots__ = ("parts", "wanted")

    def __init__(
        self, parts: Sequence[Entry], answered: Callable[["_Whole", Outcome], None]
    ) -> None:
        requests = [entry.request for entry in parts]
        request = msgspec.structs.replace(merged_request(requests), inputs=_joined(requests))
        super().__init__(request, parts[0].enqueued_at, partial(answered, self))
        self.parts, self.wanted = parts, len(parts)


class MergedEntries:
    """The requests of one lane that are merged, before and after they are sent.

    Args:
        lane: the lane.
        most_rows: rows of a merged request, by lane; changes with what is served.
        withdraw: withdraws a merged request that nobody waits for any more.
        send_alone: sends a request that was merged once more, alone.
    """

    def __init__(
        self,
        lane: Lane,
        most_rows: Mapping[Lane, int],
        withdraw: Callable[[Entry], None],
        send_alone: Callable[[Entry], None],
    ) -> None:
        self._lane = lane
        self._requests = MergedRequests(most_rows)
        self._withdraw, self._send_alone = withdraw, send_alone
        self._wholes: dict[Entry, _Whole] = {}
        """By request, the merged one with which it was sent."""
        self.add = self._requests.add
        """Takes an entry if it may be merged; the caller sends it alone otherwise."""

    @property
    def waiting(self) -> int:
        """Requests that wait to be sent."""
        return self._requests.waiting

    def learn(self, reply: InferReply) -> None:
        """Learns from a reply of the lane whether its requests may be merged."""
        self._requests.learn(self._lane, reply, is_only=reply.is_last and not reply.number)

    def take(self) -> list[Entry]:
        """Returns the entries to send now."""
        return [
            entries[0] if len(entries) == 1 else self._whole_of(entries)
            for entries in self._requests.take()
        ]

    def discard(self, entry: Entry) -> None:
        """Lets go of a dead entry, and of the merged request if it was the last one wanted."""
        whole = self._wholes.pop(entry, None)
        if whole is not None:
            whole.wanted -= 1
            if not whole.wanted:
                self._give_up(whole)

    def _whole_of(self, entries: Sequence[Entry]) -> Entry:
        whole = _Whole(entries, self._answer)
        self._wholes.update(dict.fromkeys(entries, whole))
        return whole

    def _answer(self, whole: _Whole, outcome: Outcome) -> None:
        """Hands over the outcome of merged requests: its rows to each, or its error."""
        entries = whole.parts
        for entry in entries:
            self._wholes.pop(entry, None)
        if isinstance(outcome, ServingError):
            if may_be_due_to_one(outcome):
                self._send_each_alone(entries)
            else:
                refuse_each(entries, outcome)
        elif outcome.number or not outcome.is_last:  # a model with several answers to a request
            self._give_up(whole)
            self._send_each_alone(entries)
        else:
            nbytes = sum(array.nbytes for array in outcome.outputs.values())
            for entry, reply in replies(
                entries, outcome, outcome.outputs, copied=nbytes > SHARED_BYTES
            ):
                entry.finish(reply)

    def _give_up(self, whole: Entry) -> None:
        whole.cancel()
        self._withdraw(whole)

    def _send_each_alone(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if not entry.dead:
                self._send_alone(entry)


def _joined(requests: Sequence[InferRequest]) -> dict[str, Array]:
    """Returns the inputs of several requests: their rows, one after another."""
    return {
        name: np.concatenate([request.inputs[name] for request in requests])
        for name in requests[0].inputs
    }
