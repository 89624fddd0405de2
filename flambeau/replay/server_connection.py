"""A connection to a server, for one request after the other.

Rules: redirects are not followed; an answer is read to its end within limits of time and size; a
request is sent twice only if the server closed a connection that was used before, and sent nothing.
"""

import asyncio
import time
from dataclasses import dataclass

from flambeau.replay.errors import FramingError, NoAnswerError
from flambeau.replay.http1_messages import MAX_HEAD_BYTES, Message, MessageParser
from flambeau.replay.records import Answer, Headers, RecordedRequest
from flambeau.replay.server_url import READ_BYTES, ServerUrl, Streams

OF_ONE_CONNECTION = frozenset(
    ("connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te",
     "trailer", "transfer-encoding", "upgrade")
)  # fmt: skip
"""Headers of a request that its sender sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one request and its answer."""

    timeout_s: float
    max_answer_bytes: int


class _StaleError(Exception):
    """A connection that the server closed between two requests."""


class ServerConnection:
    """A connection, opened when it is needed and kept for the next request.

    Args:
        server: the server.
        limits: limits of each request.
        token: credential to send in place of the recorded one; empty for none.
    """

    def __init__(self, server: ServerUrl, limits: CallLimits, token: str = "") -> None:
        self._server, self._limits, self._token = server, limits, token
        self._streams: Streams | None = None

    async def call(self, request: RecordedRequest) -> Answer:
        """Sends a request, and reads the answer.

        Raises:
            UnreachableError: the server takes no connections.
            NoAnswerError: no whole answer within the limits.
        """
        timeout_s = self._limits.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(request)
        except TimeoutError as error:
            raise self._broken(f"no answer within {timeout_s:g} s (--timeout-s)") from error
        except FramingError as error:
            raise self._broken(f"the answer is {error}") from error
        except OSError as error:
            raise self._broken(f"the connection broke: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def _broken(self, why: str) -> NoAnswerError:
        self.close()
        return NoAnswerError(why)

    async def _call(self, request: RecordedRequest) -> Answer:
        if self._streams is not None:
            try:
                return await self._exchange(self._streams, request)
            except _StaleError:
                self.close()
        self._streams = await self._server.connect()
        try:
            return await self._exchange(self._streams, request)
        except _StaleError as error:
            raise self._broken("the server closed the connection without an answer") from error

    async def _exchange(self, streams: Streams, request: RecordedRequest) -> Answer:
        reader, writer = streams
        limits, found = self._limits, list[Message]()
        received = 0
        parser = MessageParser(
            answers=True,
            begin=lambda: Message(keeps=lambda _: True),  # as `received` is limited
            done=found.append,
            has_no_body=lambda: request.method == "HEAD" and not found,
        )
        started = time.perf_counter()
        writer.write(self._head(request))
        writer.write(request.body)  # not awaited: a server may answer before it has read the body
        while not found:
            try:
                data = await reader.read(READ_BYTES)
            except ConnectionError as error:
                if received:
                    raise
                raise _StaleError from error
            received += len(data)
            if received > limits.max_answer_bytes + MAX_HEAD_BYTES:
                raise self._broken(
                    f"the answer is over {limits.max_answer_bytes} bytes (--max-answer-mb)"
                )
            try:
                parser.feed(data)
            except FramingError:
                if not found:  # behind an answer there may be anything
                    raise
                self.close()
            if not data and not received:
                raise _StaleError
            if not data and not (parser.end() and found):
                raise self._broken(
                    f"the connection ended within the answer, after {received} bytes"
                )
        answer = found[0]
        seconds = time.perf_counter() - started
        if _is_last(answer, request) or len(found) > 1 or not parser.is_between:
            self.close()
        return Answer(answer.status, answer.headers, bytes(answer.body), seconds)

    def _head(self, request: RecordedRequest) -> bytes:
        headers: Headers = tuple(
            (name, value)
            for name, value in request.headers
            if name not in OF_ONE_CONNECTION and not (self._token and name == "authorization")
        )
        if self._token:
            headers += (("authorization", f"Bearer {self._token}"),)
        if request.body or request.method not in ("GET", "HEAD", "OPTIONS"):
            headers += (("content-length", str(len(request.body))),)
        lines = [
            f"{request.method} {self._server.prefix}{request.path} HTTP/1.1",
            f"host: {self._server.authority}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _is_last(answer: Message, request: RecordedRequest) -> bool:
    """Returns True if the connection takes no further request."""
    named = {name: value.lower() for name, value in answer.headers}
    return (
        "close" in named.get("connection", "")
        or request.method == "HEAD"
        or (answer.ends_with_connection and answer.status not in (204, 304))
    )
