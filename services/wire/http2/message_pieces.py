"""Messages of a gRPC call that come in pieces.

In: pieces of DATA, cut anywhere. Out: whole messages, perhaps compressed. A large one is collected
in memory of its size, which takes pages as its bytes arrive; its connection may read into it.
"""

from services.wire.body import Body, SizedBody, too_large
from services.wire.loop_turns import COPY_SHIFT

PREFIX_BYTES = 5
"""Size of a message's prefix: a compression flag, and its length."""
_LEAST_SIZED_BYTES = 64 * 1024
"""Size of a message that has a buffer of its own; smaller ones come in few pieces."""


class MessagePieces:
    """Parts of messages that have come, and were not taken yet.

    Args:
        max_bytes: largest message.
        is_of_call: True if that is the call's own limit, and no setting raises it.

    Attributes:
        counted_bytes: memory that they take, as of the last `settle`.
        awaited_bytes: that are missing of a large message that has begun since they were read,
            which sets 0.
    """

    __slots__ = (
        "_body", "_flag", "_is_of_call", "_max_bytes", "_partial", "awaited_bytes", "counted_bytes",
    )  # fmt: skip

    def __init__(self, max_bytes: int, *, is_of_call: bool = False) -> None:
        self._max_bytes = max_bytes
        self._is_of_call = is_of_call
        self._partial = bytearray()
        # The large message that is being received, and its flag; all behind it is in `_partial`.
        self._body: SizedBody | None = None
        self._flag = self.counted_bytes = self.awaited_bytes = 0

    @property
    def received_bytes(self) -> int:
        """Bytes of them."""
        return len(self._partial) + (0 if self._body is None else self._body.received_bytes)

    def __bool__(self) -> bool:
        return bool(self._partial) or self._body is not None

    def settle(self) -> int:
        """Returns the memory that they take now, less what they took at the last call."""
        body, before = self._body, self.counted_bytes
        self.counted_bytes = len(self._partial) + (0 if body is None else body.held_bytes)
        return self.counted_bytes - before

    def add(self, data: bytes | bytearray | memoryview) -> int:
        """Takes a piece.

        Returns:
            Microseconds of moving bytes to new memory.

        Raises:
            PayloadTooLargeError: a large message is over the limit.
        """
        if self._body is None and not self._partial and len(data) >= PREFIX_BYTES:
            size = int.from_bytes(data[1:PREFIX_BYTES], "big")
            if size >= _LEAST_SIZED_BYTES:
                self._check(size)
                self._flag = data[0]
                self._body = SizedBody(size)
                data = memoryview(data)[PREFIX_BYTES:]
        work_us, body = 0, self._body
        if body is not None:
            work_us = -body.work_us
            is_begun = not body.received_bytes
            data = memoryview(data)[body.feed(data, 0) :]
            work_us += body.work_us
            if is_begun:
                self.awaited_bytes = body.missing_bytes
        if data:
            room = self._partial.__alloc__()
            self._partial += data
            if self._partial.__alloc__() != room:
                work_us += len(self._partial) >> COPY_SHIFT
        return work_us

    def take(self) -> tuple[int, Body] | None:
        """Removes and returns the flag and the content of the first message, if it is whole.

        Raises:
            PayloadTooLargeError: it is over the limit.
        """
        partial = self._partial
        if self._body is None and len(partial) >= PREFIX_BYTES:
            size = int.from_bytes(partial[1:PREFIX_BYTES], "big")
            self._check(size)
            end = PREFIX_BYTES + size
            if len(partial) >= end:
                flag, message = partial[0], partial[PREFIX_BYTES:end]
                del partial[:end]
                return flag, message
            if size >= _LEAST_SIZED_BYTES:
                self._partial = bytearray()
                self.add(partial)
        body = self._body
        if body is None or not body.complete:
            return None
        self._body = None
        return self._flag, body.content

    def place(self, size: int) -> SizedBody | None:
        """Returns the buffer that the next `size` bytes may be read into, if there is one."""
        body = self._body
        return body if body is not None and body.missing_bytes >= size else None

    def received(self, size: int) -> int:
        """Bytes were read into `place`. Returns microseconds of filling new memory."""
        assert self._body is not None, "it was read into"
        return self._body.received(size)

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise too_large(self._max_bytes, is_of_call=self._is_of_call)
