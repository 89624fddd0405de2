"""Calls with one request message and a stream of response messages, as fast as the peer reads."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from services.errors import ServingError
from services.wire.body import Body
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.simple_call import SimpleCall, failure

logger = logging.getLogger("flambeau.grpc")

MESSAGES_AT_ONCE = 16
"""Messages that may be sent without suspending: a peer that reads fast takes each at once."""


class StreamedAnswer(SimpleCall):
    """A call that a task answers with several messages.

    Args:
        start: handles the request message, and calls `answer_with`.
        connection: as for any call.
        head: likewise.
        stream: likewise.
    """

    __slots__ = ("_task",)

    def __init__(
        self,
        start: "Callable[[Body, StreamedAnswer], None]",
        connection: CallConnection,
        head: GrpcHead,
        stream: int,
    ) -> None:
        super().__init__(start, connection, head, stream)  # type: ignore[arg-type]  # of this kind
        self._task: asyncio.Task[None] | None = None

    def answer_with(self, messages: AsyncGenerator[bytes, None]) -> "asyncio.Task[None]":
        """Sends messages from a task, each once the peer has taken the one before.

        Args:
            messages: serialised; a `ServingError` becomes the status of the call.

        Returns:
            The task, which ends with the call; the caller keeps it.
        """
        self._task = asyncio.get_running_loop().create_task(self._send_all(messages))
        return self._task

    def abandon(self) -> None:
        """Cancels the task: the caller has disconnected."""
        if self._task is not None:
            self._task.cancel()

    async def _send_all(self, messages: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(messages):
                count = 0
                async for message in messages:
                    count += 1
                    if not count % MESSAGES_AT_ONCE:
                        await asyncio.sleep(0)
                    await self._send_one(message)
                    if self.is_over:
                        return
            self.finish()
        except ServingError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("a call failed in the gateway")
            self.fail(failure(error))

    async def _send_one(self, message: bytes) -> None:
        """Sends a message, and waits until the peer has taken it.

        Raises:
            BufferFullError: there is no room for it.
        """
        self.reserve(len(message))
        taken = asyncio.Event()
        self.send(message, taken.set)
        self.reserve(-len(message))  # what is not sent is charged to the connection
        await taken.wait()
