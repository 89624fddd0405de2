"""Flow control of one HTTP/2 connection: output within the peer's windows (RFC 9113, 5.2).

In: messages of calls, and the peer's SETTINGS and WINDOW_UPDATEs. Out: frames, as the windows
allow; the rest waits here. Calls that may send take turns, a frame each; those whose own window is
empty wait apart, so that an update costs no more than what it lets through.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from services.wire.http2.frames import (
    DATA,
    FIRST_FRAME_BYTES,
    FIRST_WINDOW,
    HEAD,
    MAX_WINDOW,
    ConnectionFaultError,
    Fault,
)

MAX_WRITTEN_FRAME_BYTES = 256 * 1024
"""Largest frame written, so that other calls have their turn, whatever the peer accepts."""
SENT_A_TURN = 128
"""Frames of calls that wait, or looks at them; each takes some 8 µs. A peer with thousands of calls
that opens its windows by a byte had that many sent at once, again and again."""
SENT_SHIFT = 14
"""A frame counts once more for each 16 KiB: 2 MiB are copied in a turn."""
JOINED_BYTES = 4096
"""Largest frame that is copied behind its head; the transport gets a larger one as a view."""

Unsent = deque[memoryview | bytes]


class Sender(Protocol):
    """The interface of a call that sends.

    Attributes:
        id: of its stream.
        credit: bytes of the peer's updates beyond the first window, less the sent bytes.
        unsent: pieces of DATA that wait, and at last the frames behind them, as bytes.
        has_moved: set when the peer took some of it, and when there is some.
    """

    id: int
    credit: int
    has_moved: bool
    unsent: Unsent | None

    def drained(self) -> None:
        """Called once nothing of what was sent waits any more."""


class Sending:
    """The send windows of one connection.

    Args:
        write: takes frames.
        sent: callback for a call that has nothing more to send.

    Attributes:
        unsent_bytes: of DATA that waits.
        sent_bytes: of DATA that has waited and was sent, since the connection began.
        is_paused: True if the peer reads nothing; then DATA waits, whatever the windows say.
    """

    __slots__ = (
        "_first", "_frame_bytes", "_is_asked", "_sent", "_stuck", "_turns", "_window", "_write",
        "is_paused", "sent_bytes", "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self, write: Callable[[bytes | memoryview], None], sent: Callable[[Sender], None]
    ) -> None:
        self._write = write
        self._sent = sent
        self._window = self._first = FIRST_WINDOW
        self._frame_bytes = FIRST_FRAME_BYTES
        # Calls that wait for the connection's window alone, in turn; and for their own.
        self._turns: OrderedDict[Sender, None] = OrderedDict()
        self._stuck: dict[Sender, None] = {}
        self.unsent_bytes = self.sent_bytes = 0
        self.is_paused = self._is_asked = False

    @property
    def waiting(self) -> int:
        """Number of calls that wait for the peer."""
        return len(self._turns) + len(self._stuck)

    def fits(self, call: Sender, size: int) -> bool:
        """Returns True if `size` of DATA fits in one frame now; then it counts as sent."""
        if (
            size > self._window
            or size > self._first + call.credit
            or size > self._frame_bytes
            or call.unsent is not None
            or self.is_paused
        ):
            return False
        self._window -= size
        call.credit -= size
        return True

    def send(self, call: Sender, pieces: list[memoryview], ending: bytes = b"") -> None:
        """Sends as much DATA as the windows allow, and the rest later.

        Args:
            call: whose.
            pieces: of the DATA.
            ending: frames that follow it, the last of the call; empty if there is more to come.
        """
        if call.unsent is None:
            call.unsent = deque()
            call.has_moved = True  # its peer's time to take it begins
            self._turns[call] = None
        call.unsent.extend(pieces)
        self.unsent_bytes += sum(map(len, pieces))
        if ending:
            call.unsent.append(ending)
        self.resume()

    def take_settings(self, first_window: int | None, frame_bytes: int | None) -> None:
        """Applies the peer's SETTINGS; the window applies to each call, also to open ones."""
        if frame_bytes is not None:
            self._frame_bytes = min(frame_bytes, MAX_WRITTEN_FRAME_BYTES)
        if first_window is not None:
            self._first = first_window
            self._turns.update(self._stuck)
            self._stuck.clear()
        self.resume()

    def widen(self, increment: int) -> None:
        """Widens the window of the connection.

        Raises:
            ConnectionFaultError: more than a window may hold.
        """
        if self._window + increment > MAX_WINDOW:
            raise ConnectionFaultError(Fault.FLOW_CONTROL_ERROR, "a window over 2^31-1")
        self._window += increment
        if self._turns:
            self.resume()

    def widen_call(self, call: Sender, increment: int) -> bool:
        """Widens the window of one call; returns False beyond the largest window."""
        call.credit += increment
        if self._first + call.credit > MAX_WINDOW:
            return False
        if call in self._stuck:
            del self._stuck[call]
            self._turns[call] = None
            self.resume()
        return True

    def forget(self, call: Sender) -> None:
        """Removes a call that is over; its unsent output is dropped."""
        if call.unsent is not None:
            self.unsent_bytes -= sum(len(one) for one in call.unsent if isinstance(one, memoryview))
            call.unsent = None
            self._turns.pop(call, None)
            self._stuck.pop(call, None)

    def resume(self) -> None:
        """Sends what may be sent, a frame of each call in turn, some in each turn of the loop."""
        if self._is_asked:
            return
        turns, left = self._turns, SENT_A_TURN
        while turns and self._window > 0 and not self.is_paused:
            left -= 1
            if left < 0:
                self._is_asked = True
                asyncio.get_running_loop().call_soon(self._resume_now)
                return
            call = next(iter(turns))
            own = self._first + call.credit
            if own <= 0:
                del turns[call]
                self._stuck[call] = None
                continue
            left -= self._send_one(call, min(self._window, own, self._frame_bytes)) >> SENT_SHIFT
            if call.unsent:
                turns.move_to_end(call)
            else:
                self.forget(call)
                call.drained()

    def _resume_now(self) -> None:
        self._is_asked = False
        self.resume()

    def _send_one(self, call: Sender, room: int) -> int:
        """Sends one frame of DATA, and what ends the call if that comes next. Returns its size."""
        unsent = call.unsent
        assert unsent, "a call that waits has something to send"
        piece = unsent.popleft()
        assert isinstance(piece, memoryview), "what ends a call goes with its last DATA"
        if len(piece) > room:
            unsent.appendleft(piece[room:])
            piece = piece[:room]
        size = len(piece)
        self._window -= size
        self.unsent_bytes -= size
        self.sent_bytes += size
        call.credit -= size
        call.has_moved = True
        head = HEAD.pack(size >> 8, size & 0xFF, DATA, 0, call.id)
        if size <= JOINED_BYTES:
            self._write(b"".join((head, piece)))
        else:
            self._write(head)
            self._write(piece)
        ending = unsent[0] if unsent else None
        if isinstance(ending, bytes):
            unsent.clear()
            self._write(ending)
            self._sent(call)
        return size
