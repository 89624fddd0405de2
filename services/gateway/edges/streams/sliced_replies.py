"""Replies to one request, written in order although large ones are encoded in slices.

In: replies, as `inference.py` hands them over. Out: their encoded parts, one reply after the other.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from services.errors import ServingError
from services.gateway.edges.raw_parts import Part
from services.gateway.inference import Inference
from services.gateway.sliced_work import SlicedWork, Slices
from services.queueing.records import InferReply

Encoded = Sequence[Part] | Slices[Sequence[Part]]


class SlicedReplies:
    """The part of a `ReplySink` that takes replies; its subclasses have the slots.

    `_behind` has the replies behind one that is being encoded, and is None while none is.
    `_reserved_bytes` are of that one, until it is delivered.
    """

    __slots__ = ()
    _behind: deque[InferReply] | None
    _inference: Inference | None
    _reserved_bytes: int

    @property
    @abstractmethod
    def work(self) -> SlicedWork:
        """Runs the slices."""

    @abstractmethod
    def charge(self, size: int) -> None:
        """Reserves memory, or gives back some if negative."""

    @abstractmethod
    def encode(self, reply: InferReply, reserve: Callable[[int], None]) -> Encoded:
        """Encodes a reply with outputs, or says how to in slices."""

    @abstractmethod
    def deliver(self, reply: InferReply, parts: Sequence[Part]) -> None:
        """Writes an encoded reply; calls `Inference.answered` before it writes the last."""

    @abstractmethod
    def deliver_end(self, reply: InferReply) -> None:
        """Writes the end behind the replies before; calls `Inference.answered` first."""

    def part(self, reply: InferReply) -> None:
        """Writes a reply, behind those before it."""
        if self._behind is not None:
            self._behind.append(reply)
            return
        encoded = self.encode(reply, self._reserve)
        if isinstance(encoded, Sequence):
            self.deliver(reply, encoded)
            return
        self._behind = deque()  # type: ignore[misc]  # the subclasses have the slot
        self.work.begin(encoded, partial(self._encoded, reply), self._failed, self._is_over)

    def end(self, reply: InferReply) -> None:
        """Ends the replies, behind those before it."""
        if self._behind is not None:
            self._behind.append(reply)
        else:
            self.deliver_end(reply)

    def _reserve(self, size: int) -> None:
        self.charge(size)
        self._reserved_bytes += size  # type: ignore[misc]

    def _is_over(self) -> bool:
        assert self._inference is not None
        return self._inference.is_over

    def _failed(self, error: Exception) -> None:
        assert self._inference is not None
        self._inference.fail_by(error)

    def _encoded(self, reply: InferReply, parts: Sequence[Part]) -> None:
        """Writes a reply that was encoded in slices, and then those behind it."""
        behind, self._behind = self._behind or (), None  # type: ignore[misc]
        try:
            self.deliver(reply, parts)
            if not self._is_over():
                held, self._reserved_bytes = self._reserved_bytes, 0  # type: ignore[misc]
                self.charge(-held)  # the writer has charged what it could not write
            for following in behind:
                if self._is_over():
                    break
                (self.part if following.outputs else self.end)(following)
        except ServingError as error:
            self._failed(error)
