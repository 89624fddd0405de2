"""uvicorn's HTTP protocol, with a limit on the head, errors in our own form, and hang-ups told.

uvicorn bounds neither the URL nor the headers, so one connection could fill the memory with them.
A handler learns of a caller that hung up only if it asks; ours is cancelled, so that work nobody
waits for is dropped before it reaches a model.
"""

import asyncio
import contextlib
from collections.abc import Iterator

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers, across reads; a single read is at most 256 KiB."""


CALLER = "flambeau.caller"
"""The key of the ASGI scope under which a handler finds its `Caller`."""


class Caller:
    """The other end of a connection. Its requests are handled one after the other."""

    def __init__(self) -> None:
        self.gone = False
        self._task: asyncio.Task[object] | None = None

    @contextlib.contextmanager
    def cancelling(self) -> Iterator[None]:
        """Within the block, a hang-up cancels the task that runs it."""
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def hang_up(self) -> None:
        """The connection is lost."""
        self.gone = True
        if self._task is not None:
            self._task.cancel()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there."""
        self._caller = Caller()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        super().connection_lost(exc)
        self._caller.hang_up()

    def on_message_begin(self) -> None:
        """The parser saw the first byte of a request."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        self.scope[CALLER] = self._caller  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        """The parser saw the empty line behind the headers."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and hangs up on a head that does not end."""
        if self._in_head:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(
                b"431 Request Header Fields Too Large",
                f"the URL and headers are over {MAX_HEAD_BYTES} bytes, the limit; send fewer",
            )
        else:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP."""
        self._refuse(b"400 Bad Request", f"{msg} Send HTTP/1.1")

    def _refuse(self, status: bytes, message: str) -> None:
        content = orjson.dumps({"error": message})
        length = str(len(content)).encode()
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ncontent-length: "
            + length + b"\r\nconnection: close\r\n\r\n" + content
        )  # fmt: skip
        self.transport.close()
