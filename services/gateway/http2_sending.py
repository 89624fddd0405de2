"""What may be written on one HTTP/2 connection, and when: the peer's windows (RFC 9113, 5.2).

In: messages of calls, and the peer's SETTINGS and WINDOW_UPDATEs. Out: frames, as the windows
allow; the rest waits here. Calls that wait take turns, a frame each.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from services.gateway.http2_frames import (
    DATA,
    FIRST_WINDOW,
    HEAD,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    ConnectionFaultError,
    Fault,
)

MAX_WRITTEN_FRAME_BYTES = 256 * 1024
"""However large the peer's frames may be, neighbours have their turn."""

Unsent = deque[memoryview | bytes]


class Sender(Protocol):
    """A call, as far as sending goes.

    Attributes:
        id: of its stream.
        credit: what the peer's updates gave beyond the first window, less what was sent.
        unsent: pieces of DATA that wait, and at last the frames behind them, as bytes.
        has_moved: set when the peer took some of it.
    """

    id: int
    credit: int
    has_moved: bool
    unsent: Unsent | None


class Sending:
    """The windows of one connection.

    Args:
        write: takes frames.
        sent: told of a call that has nothing more to send.
    """

    __slots__ = ("_first", "_frame_bytes", "_sent", "_waiting", "_window", "_write")

    def __init__(self, write: Callable[[bytes], None], sent: Callable[[Sender], None]) -> None:
        self._write = write
        self._sent = sent
        self._window = self._first = FIRST_WINDOW
        self._frame_bytes = MAX_FRAME_BYTES
        self._waiting: deque[Sender] = deque()

    @property
    def waiting(self) -> bool:
        """Whether anything waits for the peer."""
        return bool(self._waiting)

    def fits(self, call: Sender, size: int) -> bool:
        """Whether this much DATA may be sent at once, as one frame; if so it counts as sent."""
        if (
            size > self._window
            or size > self._first + call.credit
            or size > self._frame_bytes
            or call.unsent is not None
        ):
            return False
        self._window -= size
        call.credit -= size
        return True

    def send(self, call: Sender, pieces: list[memoryview], ending: bytes = b"") -> None:
        """Sends DATA, as much as may be, and the rest later.

        Args:
            call: whose.
            pieces: of the DATA.
            ending: frames that follow it, the last of the call; empty if there is more to come.
        """
        if call.unsent is None:
            call.unsent = deque()
            self._waiting.append(call)
        call.unsent.extend(pieces)
        if ending:
            call.unsent.append(ending)
        self.resume()

    def take_settings(self, first_window: int | None, frame_bytes: int | None) -> None:
        """The peer's SETTINGS; the window is that of each call, those under way included."""
        if frame_bytes is not None:
            self._frame_bytes = min(frame_bytes, MAX_WRITTEN_FRAME_BYTES)
        if first_window is not None:
            self._first = first_window
            self.resume()

    def widen(self, increment: int) -> None:
        """The peer takes more on the connection.

        Raises:
            ConnectionFaultError: more than a window may hold.
        """
        if self._window + increment > MAX_WINDOW:
            raise ConnectionFaultError(Fault.FLOW_CONTROL_ERROR, "a window over 2^31-1")
        self._window += increment
        if self._waiting:
            self.resume()

    def widen_call(self, call: Sender, increment: int) -> bool:
        """The peer takes more of one call; False if that is more than a window may hold."""
        call.credit += increment
        if self._first + call.credit > MAX_WINDOW:
            return False
        if call.unsent is not None:
            self.resume()
        return True

    def forget(self, call: Sender) -> None:
        """The call is over; what it has not sent is dropped."""
        if call.unsent is not None:
            call.unsent = None
            self._waiting.remove(call)

    def resume(self) -> None:
        """Sends what may be sent, a frame of each call in turn."""
        waiting, stuck = self._waiting, 0
        while stuck < len(waiting):
            call = waiting[0]
            moved = self._send_one(call)
            if call.unsent:
                waiting.rotate(-1)
                stuck = 0 if moved else stuck + 1
            else:
                waiting.popleft()
                call.unsent = None

    def _send_one(self, call: Sender) -> bool:
        """Sends one frame of DATA, and what ends the call if that comes next."""
        unsent = call.unsent
        assert unsent, "a call that waits has something to send"
        moved = False
        if isinstance(unsent[0], memoryview):
            room = min(self._window, self._first + call.credit, self._frame_bytes)
            if room <= 0:
                return False
            piece = unsent.popleft()
            assert isinstance(piece, memoryview)
            if len(piece) > room:
                unsent.appendleft(piece[room:])
                piece = piece[:room]
            size = len(piece)
            self._window -= size
            call.credit -= size
            call.has_moved = True
            self._write(b"".join((HEAD.pack(size >> 8, size & 0xFF, DATA, 0, call.id), piece)))
            moved = True
        ending = unsent[0] if unsent else None
        if isinstance(ending, bytes):
            unsent.clear()
            self._write(ending)
            self._sent(call)
            moved = True
        return moved
