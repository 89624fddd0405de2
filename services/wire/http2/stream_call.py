"""A gRPC call of many messages both ways, each a request of its own.

In: messages, which the call takes while it has room for them; the rest waits unread, within the
window of the call (RFC 9113, 5.2). Out: messages, in the order in which they were sent.

Rules:
- a caller that sends faster than it is answered, or does not read, is held back by its window: the
  call holds `CALL_WINDOW` bytes of messages that it has not taken, and one larger message;
- the caller may say nothing between two messages for as long as it likes.
"""

from collections.abc import Callable, Sequence

from services.errors import ServingError
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.frames import (
    CALL_WINDOW,
    DATA,
    HEAD,
    MAX_WINDOW,
    ConnectionFaultError,
    Fault,
    window_update,
)
from services.wire.http2.grpc_call import BEGINNING, JOINED_BYTES, Call
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.message_pieces import PREFIX_BYTES

_GIVEN_BACK_BYTES = CALL_WINDOW // 2
"""Bytes of taken messages for which the window is widened: a small message costs no update."""


class StreamCall(Call):
    """A call that takes messages while it has room.

    Attributes:
        is_full: True while no message is taken; see `hold` and `go_on`.
    """

    __slots__ = ("_window", "is_full")

    def __init__(self, connection: CallConnection, head: GrpcHead, stream: int) -> None:
        super().__init__(connection, head, stream)
        self._window = CALL_WINDOW
        """Bytes that the caller may still send."""
        self.is_full = False

    @property
    def may_be_silent(self) -> bool:
        """True unless the caller has sent half a message."""
        return self._pieces is None or self.is_full

    def receive(self, data: bytes | memoryview, ended: bool) -> None:
        """Takes a piece of DATA; as its base, and without its pieces for a whole message.

        Raises:
            ConnectionFaultError: it is beyond the window, [6.9.1].
        """
        size = len(data) - PREFIX_BYTES
        self._window -= len(data)
        if self._window < 0:
            raise ConnectionFaultError(Fault.FLOW_CONTROL_ERROR, "DATA beyond the window of a call")
        if (
            self._pieces is None
            and not self._taking
            and not self.is_over
            and size >= 0
            and data[0] == 0
            and int.from_bytes(data[1:PREFIX_BYTES], "big") == size
            and size <= self.head.max_bytes
        ):
            self.has_ended, self.since = ended, self.connection.port.now
            try:
                self.take(data[PREFIX_BYTES:])
                if ended and not self.is_over:
                    self.end_input()
            except ServingError as error:
                self.refuse(error)
        else:
            super().receive(data, ended)
        if self._window <= CALL_WINDOW - _GIVEN_BACK_BYTES:
            self._widen()

    def received_in_place(self, size: int) -> None:
        """Counts bytes that were read into their place."""
        self._window -= size
        super().received_in_place(size)

    def admit(self, size: int) -> None:
        """Lets the peer send the rest of a large message, and nothing behind it."""
        if size > self._window:
            self._give(size - self._window)

    def _widen(self) -> None:
        """Lets the peer send as many bytes as were taken."""
        waiting = 0 if self._pieces is None else self._pieces.received_bytes
        increment = CALL_WINDOW - self._window - waiting
        if increment >= _GIVEN_BACK_BYTES and not self.has_ended and not self.is_over:
            self._give(increment)

    def _give(self, increment: int) -> None:
        increment = min(increment, MAX_WINDOW - self._window)
        self._window += increment
        self.connection.write(window_update(self.id, increment))

    def hold(self) -> None:
        """Takes no further message: those that come wait."""
        self.is_full = self._taking = True

    def go_on(self) -> None:
        """Takes messages again, first those that wait."""
        self.is_full = self._taking = False
        if self.is_over:
            return
        try:
            self._take_messages()
        except ServingError as error:
            self.refuse(error)
        self._widen()

    def send_parts(
        self, parts: Sequence[bytes | memoryview], taken: Callable[[], None] | None
    ) -> None:
        """Sends one of several messages.

        Args:
            parts: of the message; views must not change until they are sent.
            taken: as in `send`; called before this returns if nothing waits.
        """
        if self.is_over:
            return
        connection = self.connection
        beginning = b""
        if not self._begun:
            self._begun = True
            beginning = connection.beginning(self.id, BEGINNING)
        length = sum(map(len, parts))
        size = length + PREFIX_BYTES
        prefix = b"\x00" + length.to_bytes(4, "big")
        if size <= JOINED_BYTES and connection.sending.fits(self, size):
            head = HEAD.pack(size >> 8, size & 0xFF, DATA, 0, self.id)
            connection.write_soon(b"".join((beginning, head, prefix, *parts)))
            if taken is not None:
                taken()
            return
        if beginning:
            connection.write(beginning)
        self._taken = self._taken or []
        if taken is not None:
            self._taken.append(taken)
        views = [memoryview(part) for part in parts if len(part)]
        connection.sending.send(self, [memoryview(prefix), *views])
        if self.unsent is not None:
            connection.settle_unsent()

    def when_sent(self, then: Callable[[], None]) -> None:
        """Calls back once nothing that was sent waits for the peer."""
        if self.unsent is None:
            then()
        else:
            self._taken = [*(self._taken or ()), then]

    def reserve(self, size: int) -> None:
        """Reserves memory for a request or response, or gives back some if negative.

        Raises:
            BufferFullError: there is no room.
            ServingError: the call is over; the memory would never be released.
        """
        if self.is_over:
            raise ServingError("the caller has disconnected")
        self.connection.port.budget.reserve(size)
        self.held_bytes += size
