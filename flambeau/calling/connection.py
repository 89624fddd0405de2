"""Connections to one service of a server, blocking and asyncio.

Rules:
- every call has a deadline, which its retries share (`attempts.py`);
- a call that fails raises an error of `flambeau.errors`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, Self

from flambeau.calling.attempts import CALL_TIMEOUT_S, DEFAULT_RETRIES, Attempts, check_timeout_s
from flambeau.channel import (
    MAX_MESSAGE_BYTES,
    Messages,
    Options,
    Tls,
    bind_methods,
    channel_options,
    failing,
    open_async_channel,
    open_channel,
)
from flambeau.errors import OverloadedError
from flambeau.wire import Answer, Call


class _Connection:
    """A channel to one service, with its methods.

    Args:
        target: `host:port` of gRPC. The connection opens at the first call.
        timeout_s: default timeout of a call in seconds, retries included.
        retries: most retries of a call.
        max_message_bytes: limit of one message, in either direction.
        tls: TLS settings; None for plain text.
        token: bearer token of every call; empty for none.
    """

    service: ClassVar[str]
    messages: ClassVar[Messages]

    @staticmethod
    def _open(target: str, options: Options, tls: Tls | None) -> Any:
        """Opens the channel, as `open_channel`."""
        raise NotImplementedError

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        retries: int = DEFAULT_RETRIES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        self._timeout_s, self._retries = check_timeout_s(timeout_s), retries
        options = channel_options(max_message_bytes, self.service, retries)
        self._channel = self._open(target, options, tls)
        self._methods = bind_methods(self._channel, self.service, self.messages, token)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        return Attempts(self._timeout_s if timeout_s is None else timeout_s, self._retries)


class ServiceConnection(_Connection):
    """A connection to one service; threads may share it. Closed at the end of its `with` block."""

    _open = staticmethod(open_channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls in progress are cancelled."""
        self._channel.close()

    def _answer(self, call: Call[Answer], timeout_s: float | None = None) -> Answer:
        attempts = self._attempts(timeout_s)
        while True:
            try:
                with failing(attempts.timeout_s):
                    reply = self._methods[call.method](call.request, timeout=attempts.remaining_s)
                return call.read(reply)
            except OverloadedError as refusal:
                wait_s = attempts.wait_s(refusal)
            time.sleep(wait_s)

    def _answers(self, call: Call[Answer], timeout_s: float | None = None) -> Iterator[Answer]:
        """Yields the answers of a call that streams; it is tried again until the first one."""
        attempts = self._attempts(timeout_s)
        is_begun = False
        while True:
            replies = self._methods[call.method](
                iter((call.request,)), timeout=attempts.remaining_s
            )
            try:
                with failing(attempts.timeout_s):
                    for reply in replies:
                        answer = call.read(reply)
                        is_begun = True
                        yield answer
                return
            except OverloadedError as refusal:
                if is_begun:
                    raise
                wait_s = attempts.wait_s(refusal)
            finally:
                replies.cancel()
            time.sleep(wait_s)


class AsyncServiceConnection(_Connection):
    """Asyncio version of `ServiceConnection`: create and use it inside one running event loop."""

    _open = staticmethod(open_async_channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls in progress are cancelled."""
        await self._channel.close(grace=None)

    async def _answer(self, call: Call[Answer], timeout_s: float | None = None) -> Answer:
        attempts = self._attempts(timeout_s)
        while True:
            try:
                with failing(attempts.timeout_s):
                    method = self._methods[call.method]
                    reply = await method(call.request, timeout=attempts.remaining_s)
                return call.read(reply)
            except OverloadedError as refusal:
                wait_s = attempts.wait_s(refusal)
            await asyncio.sleep(wait_s)

    async def _answers(
        self, call: Call[Answer], timeout_s: float | None = None
    ) -> AsyncIterator[Answer]:
        attempts = self._attempts(timeout_s)
        is_begun = False
        while True:
            replies = self._methods[call.method](
                iter((call.request,)), timeout=attempts.remaining_s
            )
            try:
                with failing(attempts.timeout_s):
                    async for reply in replies:
                        answer = call.read(reply)
                        is_begun = True
                        yield answer
                return
            except OverloadedError as refusal:
                if is_begun:
                    raise
                wait_s = attempts.wait_s(refusal)
            finally:
                replies.cancel()
            await asyncio.sleep(wait_s)
