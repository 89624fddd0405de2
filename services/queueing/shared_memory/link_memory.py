"""The memory that an edge and the model process share: a ring and an arena in each direction.

It is an anonymous file (memfd_create(2)) of which only the touched pages exist. The edge makes it,
and sends its descriptor over their socket pair; when both have died, it is gone.
"""

import mmap
import os
import socket

from services.queueing.shared_memory.ring import WORDS, RingReader, RingWriter

RING_BYTES = 1024 * 1024
"""Some 3,000 small requests; a frame takes a quarter of it at most."""
_STATE_BYTES = 8 * WORDS
_RINGS_AT = mmap.PAGESIZE
_ARENAS_AT = _RINGS_AT + 2 * RING_BYTES


class LinkMemory:
    """One end's view of the memory.

    Args:
        descriptor: descriptor of the file, which is not needed any more afterwards.
        is_edge: True at the edge's end.

    Attributes:
        outgoing, incoming: rings of this end.
        own: arena that this end allocates and writes.
        others: arena of the other end.
    """

    def __init__(self, descriptor: int, *, is_edge: bool) -> None:
        size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, size)
        view = memoryview(self._map)
        states = [view[n * _STATE_BYTES : (n + 1) * _STATE_BYTES].cast("Q") for n in (0, 1)]
        rings = [view[at : at + RING_BYTES] for at in (_RINGS_AT, _RINGS_AT + RING_BYTES)]
        middle = _ARENAS_AT + (size - _ARENAS_AT) // 2
        arenas = [view[_ARENAS_AT:middle], view[middle:size]]
        own, other = (0, 1) if is_edge else (1, 0)
        self.outgoing = RingWriter(states[own], rings[own])
        self.incoming = RingReader(states[other], rings[other])
        self.own, self.others = arenas[own], arenas[other]
        self._own_at = (_ARENAS_AT, middle)[own]

    def forget_own(self, above: int) -> None:
        """Frees the pages of the own arena above an offset; no block may lie there."""
        start = self._own_at + above + -(self._own_at + above) % mmap.PAGESIZE
        end = self._own_at + len(self.own)
        end -= end % mmap.PAGESIZE
        if start < end:
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)


def make_memory(arena_bytes: int) -> int:
    """Makes the file of a link, with arenas of so many bytes each. Returns its descriptor."""
    descriptor = os.memfd_create("flambeau-link", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _ARENAS_AT + 2 * (arena_bytes + -arena_bytes % mmap.PAGESIZE))
    return descriptor


def send_memory(end: socket.socket, descriptor: int) -> None:
    """Sends the descriptor as the first message of a link.

    Raises:
        OSError: the other end is closed.
    """
    socket.send_fds(end, [b"m"], [descriptor])


def receive_memory(end: socket.socket) -> int | None:
    """Receives the descriptor of the first message; None if the other end is closed.

    Raises:
        BlockingIOError: it has not come yet.
    """
    data, descriptors, _, _ = socket.recv_fds(end, 1, 1, socket.MSG_CMSG_CLOEXEC)
    return descriptors[0] if data and descriptors else None
