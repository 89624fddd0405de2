"""Budget of useless but cheap frames, against HTTP/2 floods.

In: frames that begin no call, carry no message and accept no response. Out: nothing, until a peer
has sent more of them than a client would; then the error that ends its connection.

Resets of calls that have no answer (CVE-2023-44487) and faults that have us reset them
(CVE-2025-8671), PING, SETTINGS, PRIORITY, empty DATA, small WINDOW_UPDATEs and frames of unknown
kinds all take the event loop's time at 9 bytes each. Every client sends some. The budget grows with
time and with answered calls, so that a client with much to do may say as much.
"""

from services.wire.http2.frames import ConnectionFaultError, Fault

CAPACITY = 65_536
"""Largest burst of frames."""
A_SECOND = 32_768
"""A grpcio client that cancels as fast as it can (5,000 calls a second, none answered) was ended at
8,192: such a call costs two, and small window updates come beside."""
AN_ANSWER = 8
FAULT_COST = 8
"""Cost of a frame that breaks a rule of streams, and of a header block that begins no call: no
client sends many, and each takes the event loop as long as a call. At 2, a flood of 20,000 a second
lasted 20 s."""
SETTINGS_COST, WAITING_A_FRAME = 8, 8
"""In frames; and calls that wait, of which each is looked at again, that count as one more."""
MAX_SETTINGS_BYTES = 32 * 6
"""Largest SETTINGS frame, of 32 settings; each has its meaning once. nghttp2 has the same limit."""
ANSWER_FRAMES = 8
"""A frame that is answered by another takes as much more of a turn: a write of its own."""
SMALL_DATA_BYTES = 16
SMALL_INCREMENT = 1024
"""A window is used up by at most 2^21 larger ones; of a message, clients send few smaller ones."""


def cost_of_settings(payload: bytes, waiting: int) -> int:
    """Returns the cost of a SETTINGS frame; more than 32 settings cost the whole budget.

    Args:
        payload: of the frame.
        waiting: calls whose answers wait for its windows.
    """
    if len(payload) > MAX_SETTINGS_BYTES:
        return 2 * CAPACITY + A_SECOND
    return SETTINGS_COST + waiting // WAITING_A_FRAME


class Calm:
    """The frame budget of one connection.

    Attributes:
        left: frames that the peer may still send; callers add for answers, up to `CAPACITY`.
    """

    __slots__ = ("_since", "left")

    def __init__(self, now: float) -> None:
        self.left = CAPACITY
        self._since = now

    def refill(self, now: float, reason: str) -> None:
        """Adds the budget of the elapsed time, once nothing is left.

        Args:
            now: the event loop's time.
            reason: the kind of the last frame, for the peer.

        Raises:
            ConnectionFaultError: the budget is exhausted.
        """
        self.left += min(CAPACITY, int((now - self._since) * A_SECOND))
        self._since = now
        if self.left < 0:
            raise ConnectionFaultError(
                Fault.ENHANCE_YOUR_CALM, f"a flood: over {CAPACITY} frames such as {reason}"
            )
