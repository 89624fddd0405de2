"""uvicorn's HTTP protocol, with a limit on the head of a request and errors in our own form.

uvicorn bounds neither the URL nor the headers, so one connection could fill the memory with them.
"""

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers, across reads; a single read is at most 256 KiB."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        """The parser saw the first byte of a request."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

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
