"""A ring of frames in shared memory: one process writes them, one other reads them.

In: frames, each a whole number of messages. Out: the same frames, in order. Neither side waits, and
neither makes a system call here; `link.py` wakes the other side where it sleeps.

The layout, in words of 8 bytes, each of the four in a cache line of its own: how far the writer has
written, how far the reader has read, whether the reader sleeps, and whether the writer waits for
room. Counts of bytes only grow; a count modulo the size is a position. A frame is its length and
its bytes, and never wraps: a length of `_SKIP` says that it begins at the start.

Rules:
- what is not published is not there: a writer that dies in the middle of a frame leaves no part;
- each side writes its state, and reads that of the other only behind a `fence`: so of a reader that
  falls asleep and a writer that publishes, one notices the other. x86 orders all but that.
"""

import threading

WORDS = 32
"""Words of state of one ring."""
_WRITTEN, _READ, _SLEEPS, _WAITS = 0, 8, 16, 24
_SKIP = 2**64 - 1
_WORD = 8

_lock = threading.Lock()


def fence() -> None:
    """Orders the accesses of this thread to memory: a locked instruction, some 50 ns."""
    if _lock.acquire(blocking=False):
        _lock.release()


class RingError(Exception):
    """The other side has written what it never writes."""


class RingWriter:
    """The writing end.

    Args:
        state: `WORDS` words of shared memory, as unsigned integers.
        data: shared memory of the frames; its size is a multiple of 8.
    """

    def __init__(self, state: memoryview, data: memoryview) -> None:
        self._state = state
        self._data, self._lengths = data, data.cast("Q")
        self._size = len(data)
        self._written = state[_WRITTEN]

    def put(self, frame: bytes) -> bool:
        """Publishes a frame of at most a quarter of the ring.

        Returns:
            False if there is no room; the reader then wakes this side once it has read some.
        """
        if self._put(frame):
            return True
        self._state[_WAITS] = 1
        fence()
        if not self._put(frame):  # nothing was read meanwhile
            return False
        self._state[_WAITS] = 0
        return True

    def _put(self, frame: bytes) -> bool:
        size, written = self._size, self._written
        start = written % size
        needed = _WORD + len(frame) + -len(frame) % _WORD
        skipped = size - start if needed > size - start else 0
        if written + skipped + needed - self._state[_READ] > size:
            return False
        if skipped:
            self._lengths[start // _WORD] = _SKIP
            start = 0
        self._lengths[start // _WORD] = len(frame)
        self._data[start + _WORD : start + _WORD + len(frame)] = frame
        self._written = self._state[_WRITTEN] = written + skipped + needed
        return True

    def must_wake(self) -> bool:
        """Returns True if the reader sleeps, the first time that it is asked for a sleep."""
        fence()
        if self._state[_SLEEPS]:
            self._state[_SLEEPS] = 0
            return True
        return False


class RingReader:
    """The reading end; the arguments are as for `RingWriter`."""

    def __init__(self, state: memoryview, data: memoryview) -> None:
        self._state = state
        self._data, self._lengths = data, data.cast("Q")
        self._size = len(data)
        self._read = state[_READ]

    def take(self) -> bytes | None:
        """Returns a copy of the next frame; None if there is none.

        Raises:
            RingError: the state or a length is impossible.
        """
        read, size = self._read, self._size
        left = self._state[_WRITTEN] - read
        if not left:
            return None
        start = read % size
        length = self._lengths[start // _WORD]
        if length == _SKIP:
            read += size - start
            left -= size - start
            start, length = 0, self._lengths[0]
        needed = _WORD + length + -length % _WORD
        if not needed <= left <= size or start + needed > size:
            raise RingError(f"a frame of {length} bytes at {start}, with {left} written")
        frame = bytes(self._data[start + _WORD : start + _WORD + length])
        self._read = self._state[_READ] = read + needed
        return frame

    def must_wake(self) -> bool:
        """Returns True if the writer waits for room, the first time that it is asked for a wait."""
        fence()
        if self._state[_WAITS]:
            self._state[_WAITS] = 0
            return True
        return False

    def sleep(self) -> bool:
        """Has the writer wake this side from now on. Returns False if there is a frame already."""
        self._state[_SLEEPS] = 1
        fence()
        if self._state[_WRITTEN] == self._read:
            return True
        self._state[_SLEEPS] = 0
        return False
