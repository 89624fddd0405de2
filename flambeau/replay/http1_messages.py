"""Parses HTTP/1 messages from bytes as they arrive, by httptools (llhttp).

In: the bytes of one direction of a connection. Out: each message when it is whole.

Rules: bodies are kept as far as the owner of a message allows; what is not body is limited, so that
neither headers nor the framing of chunks are endless; a message without a length ends with its
connection (RFC 9112, 6.3).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools

from flambeau.replay.errors import FramingError
from flambeau.replay.records import Headers

MAX_HEAD_BYTES = 2**16
"""Headers, trailers and chunk extensions of a message."""
FRAMING_A_BODY_BYTE = 8
"""A chunk of one byte has five bytes of framing."""
_HEAD_END = b"\r\n\r\n"
_INFORMATIONAL = range(100, 200)


@dataclass(slots=True)
class Message:
    """A request or an answer that arrives.

    Attributes:
        keeps: is asked before bytes of the body are kept, with their number; the first False
            drops the body.
        headed: is called once the headers are complete.
        is_headed: True once the headers are complete.
        is_cut: True if the body was dropped.
    """

    keeps: Callable[[int], bool]
    headed: Callable[[], None] = lambda: None
    method: str = ""
    target: bytes = b""
    status: int = 0
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    is_headed: bool = False
    is_cut: bool = False

    @property
    def headers(self) -> Headers:
        """The headers, decoded as Latin-1."""
        return tuple((n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in self.fields)

    def forget_head(self) -> None:
        """Drops the target and the headers."""
        self.target = b""
        self.fields.clear()

    @property
    def head_bytes(self) -> int:
        """Bytes of the target and the headers."""
        return len(self.target) + sum(len(name) + len(value) for name, value in self.fields)

    @property
    def ends_with_connection(self) -> bool:
        """True for an answer without a length."""
        named = {name.lower(): value.lower() for name, value in self.fields}
        chunked = b"chunked" in named.get(b"transfer-encoding", b"")
        return not chunked and b"content-length" not in named


class MessageParser:
    """Parses the messages of one direction.

    Args:
        answers: True for answers, False for requests.
        begin: makes the record of the next message.
        done: receives each message when it is whole; not informational answers (1xx).
        has_no_body: True if the next answer has no body whatever its headers say, as that to HEAD.
    """

    def __init__(
        self,
        *,
        answers: bool,
        begin: Callable[[], Message],
        done: Callable[[Message], None],
        has_no_body: Callable[[], bool] = lambda: False,
    ) -> None:
        self._answers = answers
        self._begin, self._done, self._has_no_body = begin, done, has_no_body
        self._message: Message | None = None
        self._framing_bytes = self._body_bytes = 0
        self._head = bytearray()
        self._renew()

    def _renew(self) -> None:
        kind = httptools.HttpResponseParser if self._answers else httptools.HttpRequestParser
        self._parser: Any = kind(self)

    @property
    def is_between(self) -> bool:
        """True if no message has begun and not ended."""
        return self._message is None and not self._head

    def feed(self, data: bytes) -> None:
        """Parses further bytes.

        Raises:
            FramingError: they are no HTTP/1, or switch to another protocol.
        """
        try:
            while data and self._answers and self._has_no_body():
                data = self._feed_head(data)
            if data:
                self._feed(data)
        except httptools.HttpParserUpgrade as error:
            raise FramingError("the connection switches to another protocol") from error
        except httptools.HttpParserError as error:
            raise FramingError(f"no HTTP/1: {error}") from error

    def end(self) -> bool:
        """Ends a message that lasts as long as its connection. Returns False if one is cut off."""
        message = self._message
        if message is not None and message.is_headed and message.ends_with_connection:
            self.on_message_complete()
        return self.is_between

    def _feed(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        self._parser.feed_data(data)
        most = MAX_HEAD_BYTES + FRAMING_A_BODY_BYTE * self._body_bytes
        if self._framing_bytes - self._body_bytes > most:
            raise FramingError(f"a message has over {most} bytes beside its body")

    def _feed_head(self, data: bytes) -> bytes:
        """Parses an answer that ends with its head. Returns the bytes behind it."""
        before = len(self._head)
        self._head += data
        end = self._head.find(_HEAD_END, max(0, before - len(_HEAD_END)))
        if end < 0:
            if len(self._head) > MAX_HEAD_BYTES:
                raise FramingError(f"headers are longer than {MAX_HEAD_BYTES} bytes")
            return b""
        end += len(_HEAD_END)
        head = bytes(self._head[:end])
        self._head.clear()
        self._feed(head)
        if self._message is not None:  # it waits for a body that does not come
            self.on_message_complete()
            self._renew()
        return data[end - before :]

    # Called by httptools.

    def on_message_begin(self) -> None:
        """Begins a message."""
        self._message = self._begin()

    def on_url(self, url: bytes) -> None:
        """Adds to the target of a request."""
        assert self._message is not None
        self._message.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; trailers are left out."""
        if self._message is not None and not self._message.is_headed:
            self._message.fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Ends the head."""
        message = self._message
        assert message is not None
        message.is_headed = True
        if self._answers:
            message.status = self._parser.get_status_code()
        else:
            message.method = self._parser.get_method().decode()
        message.headed()

    def on_body(self, piece: bytes) -> None:
        """Adds to the body."""
        message = self._message
        assert message is not None
        self._body_bytes += len(piece)
        if not message.is_cut and message.keeps(len(piece)):
            message.body += piece
        else:
            message.is_cut = True
            message.body.clear()

    def on_message_complete(self) -> None:
        """Ends a message."""
        message, self._message = self._message, None
        assert message is not None
        self._framing_bytes = self._body_bytes = 0
        if message.status not in _INFORMATIONAL:
            self._done(message)
