"""One gRPC call: messages in, messages and a status out (gRPC over HTTP/2).

In: pieces of DATA, cut anywhere. Out: frames on the call's connection.
Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md

Rules:
- a call ends with one status, the first that is set; later input is dropped;
- no message over `max_request_bytes` is collected or decompressed.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message

from services.errors import BufferFullError, InvalidRequestError, ServingError
from services.wire.body import Body, SizedBody
from services.wire.compression import INFLATE_SHIFT
from services.wire.http2 import headers as http2_headers
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.frames import (
    CALL_WINDOW,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    MAX_WINDOW,
    frame,
    window_update,
)
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.message_pieces import PREFIX_BYTES, MessagePieces
from services.wire.http2.sending import Unsent

STATUS_CODES = {
    name: code
    for code, name in enumerate(
        (
            "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
            "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
            "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
            "UNAUTHENTICATED",
        )
    )
}  # fmt: skip
"""Source: https://grpc.github.io/grpc/core/md_doc_statuscodes.html"""

_MAX_WORDS_BYTES = 6 * 1024
"""Longest encoded error message: clients accept only some 8 KB of metadata."""
_READABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
BEGINNING = http2_headers.STATUS_200 + http2_headers.write(
    [("content-type", "application/grpc"), ("grpc-accept-encoding", "identity,deflate,gzip")]
)
_OK = http2_headers.write([("grpc-status", "0")])
JOINED_BYTES = 64 * 1024
"""Up to this, a copy costs less than a second piece to write."""

M = TypeVar("M", bound=Message)

Metadata = tuple[tuple[str, str], ...]


def retry_hint(after_s: int) -> Metadata:
    """Returns metadata with the retry delay.

    The first is for readers, the second for gRPC's own retries: a client whose retry policy names
    the status waits this long (gRPC proposal A6, server pushback); to others it means nothing.
    """
    return ("retry-after", str(after_s)), ("grpc-retry-pushback-ms", str(after_s * 1000))


class Call:
    """A call that is being answered.

    The connection calls `take` with each whole message and `end_input` behind the last, or `refuse`
    if they are invalid; and `abandon` once the caller no longer waits.
    The handler calls `reply`, or `send` any number of times and then `finish`, or `fail`;
    once the call is over all of them do nothing.

    Attributes:
        id: of its stream.
        head: of the request.
        is_over: True once it has its status, or is abandoned.
        has_ended: True once the caller has sent its last message.
        since: the loop's time at which it began, or its last message came.
        credit: as in `sending.Sender`.
        unsent: likewise.
        has_moved: likewise.
        held_bytes: of the budget, for its message while it is answered.
    """

    __slots__ = (
        "_begun", "_pieces", "_taken", "_taking", "connection", "credit", "has_ended", "has_moved",
        "head", "held_bytes", "id", "is_over", "since", "unsent",
    )  # fmt: skip
    counts_refusals: ClassVar[bool] = False
    """True if `refuse` counts refusals by limits."""

    def __init__(self, connection: CallConnection, head: GrpcHead, stream: int) -> None:
        self.connection = connection
        self.head = head
        self.id = stream
        self.credit = self.held_bytes = 0
        self.unsent: Unsent | None = None
        self.is_over = self.has_ended = self.has_moved = False
        self.since = connection.port.now
        self._pieces: MessagePieces | None = None
        self._begun = False
        self._taken: list[Callable[[], None]] | None = None
        self._taking = False

    # Overridden by kinds of calls.

    def take(self, message: Body) -> None:
        """Handles a complete, uncompressed message."""
        raise NotImplementedError

    def end_input(self) -> None:
        """The caller has said all it had to say."""

    @property
    def may_be_silent(self) -> bool:
        """True if its caller need not send anything now, although it has not ended."""
        return False

    @property
    def outlives_caller(self) -> bool:
        """True if its work goes on without its caller; it then releases its bytes itself."""
        return False

    def check_caller(self) -> None:
        """Checks the caller before a message in pieces is awaited.

        Raises:
            ServingError: the caller is not authorised.
        """

    def refuse(self, error: ServingError) -> None:
        """Refuses the caller's messages."""
        self.fail(error)

    def abandon(self) -> None:
        """Drops the call: the caller no longer waits, and the connection has removed it."""

    def receive(self, data: bytes | memoryview, ended: bool) -> None:
        """Takes a piece of DATA.

        Args:
            data: without padding.
            ended: True for the last piece.
        """
        size = len(data) - PREFIX_BYTES
        self.has_ended = ended
        if self.is_over:
            return  # what is left of its answer waits for the caller
        try:
            if (
                ended
                and self._pieces is None
                and not self._taking
                and size >= 0
                and data[0] == 0
                and int.from_bytes(data[1:PREFIX_BYTES], "big") == size
                and size <= self.head.max_bytes
            ):
                # What nearly every call is: one message in one frame.
                self.take(data[PREFIX_BYTES:])
                self.end_input()
                return
            pieces, connection = self._pieces, self.connection
            if pieces is None:
                self.check_caller()
                head = self.head
                is_of_call = head.max_bytes == head.most_bytes
                pieces = MessagePieces(head.max_bytes, is_of_call=is_of_call)
                self._pieces = pieces
            connection.count_work(pieces.add(data))
            connection.unfinished_bytes += pieces.settle()
            connection.moved_bytes += len(data)
            self._admit_large(pieces)
            self._take_messages()
        except ServingError as error:
            self.refuse(error)

    def place(self, size: int) -> SizedBody | None:
        """Returns the buffer that the next `size` bytes may be read into, if there is one."""
        return None if self._pieces is None else self._pieces.place(size)

    def received_in_place(self, size: int) -> None:
        """Bytes were read into the buffer of `place`; behind the last comes an empty piece."""
        pieces, connection = self._pieces, self.connection
        assert pieces is not None, "it was read into"
        connection.port.turns.count(pieces.received(size))
        connection.unfinished_bytes += pieces.settle()
        connection.moved_bytes += size

    def _admit_large(self, pieces: MessagePieces) -> None:
        """Widens the peer's window for a large message that has begun."""
        size, pieces.awaited_bytes = pieces.awaited_bytes, 0
        if size and not self.has_ended:
            self.admit(size)

    def admit(self, size: int) -> None:
        """Lets the peer send `size` bytes of one message."""
        if size > CALL_WINDOW // 2:
            increment = min(size, MAX_WINDOW - CALL_WINDOW)
            self.connection.write(window_update(self.id, increment))

    def _take_messages(self) -> None:
        """Takes each message that is there, unless one is being decompressed."""
        while not self._taking and not self.is_over and (pieces := self._pieces) is not None:
            found = pieces.take()
            self.connection.unfinished_bytes += pieces.settle()
            self._admit_large(pieces)
            if not pieces:
                self._pieces = None
            if found is None:
                break
            flag, message = found
            self.since = self.connection.port.now
            if flag == 0:
                self.take(message)
            else:
                self._decompress(flag, message)
        if self.has_ended and not self._taking and not self.is_over:
            if self._pieces is not None:
                raise InvalidRequestError("the call ends within a message")
            self.end_input()

    def _decompress(self, flag: int, message: Body) -> None:
        encoding = self.head.encoding
        if flag != 1 or not encoding:
            raise InvalidRequestError(
                "a message is marked as compressed, and grpc-encoding does not say how"
            )
        self._taking = at_once = True
        connection = self.connection
        connection.unfinished_bytes += len(message)

        def taken(outcome: Body | ServingError) -> None:
            self._taking = False
            connection.unfinished_bytes -= len(message)
            if self.is_over:
                return
            try:
                if isinstance(outcome, BufferFullError):
                    connection.refuse(self, outcome)
                    return
                if isinstance(outcome, ServingError):
                    raise outcome
                if at_once:
                    connection.port.turns.count(len(outcome) >> INFLATE_SHIFT)
                self.take(outcome)
                if not at_once:  # else whoever called goes on
                    self._take_messages()
            except ServingError as error:
                self.refuse(error)

        connection.port.compression.decompress(
            message,
            encoding,
            self.head.max_bytes,
            budget=connection.port.budget,
            is_wanted=lambda: not self.is_over,
            done=taken,
        )
        at_once = False

    def reply(self, message: bytes, metadata: bytes = b"") -> None:
        """Answers with the one message of a call, and the status OK.

        Args:
            message: serialised.
            metadata: trailing, as `headers.write` makes it.
        """
        if self.is_over:
            return
        self.is_over = True
        size = len(message) + PREFIX_BYTES
        trailers = _OK + metadata
        ending = _headers(END_STREAM, self.id, trailers)
        prefix = b"\x00" + len(message).to_bytes(4, "big")
        connection = self.connection
        beginning = connection.beginning(self.id, BEGINNING)
        if connection.sending.fits(self, size):
            head = HEAD.pack(size >> 8, size & 0xFF, DATA, 0, self.id)
            if size <= JOINED_BYTES:
                connection.write_whole(b"".join((beginning, head, prefix, message, ending)))
            else:
                connection.write(beginning + head + prefix)
                connection.write(message)
                connection.write(ending)
            connection.answered(self)
        else:
            connection.write(beginning)
            pieces = [memoryview(prefix), memoryview(message)] if message else [memoryview(prefix)]
            connection.sending.send(self, pieces, ending)
            connection.settle_unsent()

    def reply_in_parts(self, parts: Sequence[bytes | memoryview], metadata: bytes = b"") -> None:
        """The same for a large message; what the call was charged, it gives back.

        Args:
            parts: of the message; views must not change until they are sent.
            metadata: as in `reply`.
        """
        if self.is_over:
            return
        self.is_over = True
        connection = self.connection
        prefix = b"\x00" + sum(map(len, parts)).to_bytes(4, "big")
        ending = _headers(END_STREAM, self.id, _OK + metadata)
        connection.write(connection.beginning(self.id, BEGINNING))
        connection.port.budget.held_bytes -= self.held_bytes
        self.held_bytes = 0  # what is not sent is charged to the connection
        connection.sending.send(
            self, [memoryview(prefix), *(memoryview(part) for part in parts if len(part))], ending
        )
        connection.settle_unsent()

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        """Sends one of several messages.

        Args:
            message: serialised.
            taken: called once nothing sent so far waits for the peer; never if the call is over
                before. A handler that waits for it sends as fast as the peer reads.
        """
        if self.is_over:
            return
        if not self._begun:
            self._begun = True
            self.connection.write(self.connection.beginning(self.id, BEGINNING))
        prefixed = b"\x00" + len(message).to_bytes(4, "big") + message
        if taken is not None:
            self._taken = [*(self._taken or ()), taken]
        self.connection.sending.send(self, [memoryview(prefixed)])
        if self.unsent is not None:
            self.connection.settle_unsent()

    def drained(self) -> None:
        """Calls back for messages that no longer wait."""
        taken, self._taken = self._taken, None
        for one in taken or ():
            one()

    def finish(self) -> None:
        """Ends the call behind what was sent, with the status OK."""
        self._finish(_OK)

    def fail(self, error: ServingError, *metadata: tuple[str, str]) -> None:
        """Ends the call with an error's status and message.

        Args:
            error: why; one that a retry may cure adds a hint when to.
            metadata: more to say behind the status.
        """
        if error.retryable:
            metadata += retry_hint(error.retry_after_s)
        status = ("grpc-status", str(STATUS_CODES[error.grpc_code]))
        words = ("grpc-message", _percent_encoded(str(error)))
        self._finish(http2_headers.write([status, words, *metadata]))

    def answer_http(self, status: int) -> None:
        """Ends a request other than gRPC with an HTTP status."""
        self.is_over = True
        block = http2_headers.write([(":status", str(status))])
        self.connection.write(self.connection.beginning(self.id, block, END_STREAM))
        self.connection.answered(self)

    def _finish(self, trailers: bytes) -> None:
        if self.is_over:
            return
        self.is_over = True
        connection = self.connection
        if self._begun:
            ending = _headers(END_STREAM, self.id, trailers)
        else:
            ending = connection.beginning(self.id, BEGINNING + trailers, END_STREAM)
        if self.unsent is not None:
            connection.sending.send(self, [], ending)
        else:
            connection.write(ending)
            connection.answered(self)

    def forget_input(self) -> None:
        """Drops received input that was not taken."""
        if self._pieces is not None:
            self.connection.unfinished_bytes -= self._pieces.counted_bytes
            self._pieces = None


class UnaryCall(Call):
    """A call with one request message and one response message."""

    __slots__ = ("_held_bytes", "_message")

    def __init__(self, connection: CallConnection, head: GrpcHead, stream: int) -> None:
        super().__init__(connection, head, stream)
        self._message: Body | None = None
        self._held_bytes = 0

    def begin(self, message: Body) -> None:
        """Starts the work."""
        raise NotImplementedError

    def take(self, message: Body) -> None:
        """Stores the message until the end of the input, unless it has come."""
        if self._message is not None:
            raise InvalidRequestError("a second message in a unary call")
        self._message = message
        if not self.has_ended:
            # Until then it costs us what a message in pieces does.
            self._held_bytes = len(message)
            self.connection.unfinished_bytes += self._held_bytes

    def end_input(self) -> None:
        """Begins the work on the one message."""
        message, self._message = self._message, None
        if self._held_bytes:
            self.forget_input()
        if message is None:
            self.refuse(InvalidRequestError("the call has no message"))
        else:
            budget = self.connection.port.budget
            size = self.held_bytes = len(message)
            budget.held_bytes += size
            if budget.held_bytes > budget.small_limit_bytes and not budget.has_room_for(size):
                self.connection.refuse(self, budget.full())
            elif not self.is_over:
                self.begin(message)

    def reserve(self, size: int) -> None:
        """Reserves memory for a large request or response, until the call is over.

        A negative number gives some of it back before.

        Raises:
            BufferFullError: there is no room.
            ServingError: the call is over; the memory would never be released.
        """
        if self.is_over:
            raise ServingError("the caller has disconnected")
        self.connection.port.budget.reserve(size)
        self.held_bytes += size

    def release(self) -> None:
        """Releases the charged bytes."""
        self.connection.port.budget.give(self.held_bytes)
        self.held_bytes = 0

    def forget_input(self) -> None:
        """The message, too."""
        super().forget_input()
        self.connection.unfinished_bytes -= self._held_bytes
        self._held_bytes, self._message = 0, None


def parsed(message: type[M], body: Body) -> M:
    """Parses a request message.

    Raises:
        InvalidRequestError: the bytes are not this message, such as text not in UTF-8.
    """
    try:
        return message.FromString(body)  # type: ignore[arg-type]  # takes a bytearray, too
    except DecodeError:
        raise InvalidRequestError(
            "the request is not a valid message of this call: broken, or text not in UTF-8"
        ) from None


def _percent_encoded(words: str) -> str:
    """Encodes a message for `grpc-message`, cut to the length that clients accept."""
    encoded = quote(words, safe=_READABLE, errors="replace")
    while len(encoded) > _MAX_WORDS_BYTES:
        words = words[: len(words) // 2]
        encoded = quote(words, safe=_READABLE, errors="replace")
    return encoded


def _headers(flags: int, stream: int, block: bytes) -> bytes:
    return frame(HEADERS, flags | END_HEADERS, stream, block)
