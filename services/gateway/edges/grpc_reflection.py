"""Reflection: what a server's calls and messages look like, for tools such as grpcurl.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from grpc_reflection.v1alpha import reflection_pb2 as pb

from services.errors import InvalidRequestError, UnreadAnswersError
from services.gateway.wire.body import Body
from services.gateway.wire.http2.call_connection import CallConnection
from services.gateway.wire.http2.grpc_call import Call, failure, parsed
from services.gateway.wire.http2.grpc_head import GrpcHead
from services.interpreter_lock import lend_lock

logger = logging.getLogger("flambeau.grpc")

SERVICE = "grpc.reflection.v1alpha.ServerReflection"
MAX_WAITING = 64
"""Questions of one call that may wait for their answers, and answers for their caller."""
QUESTION_BYTES = 64
"""Of memory for one that waits, beside what it says."""
ANSWERS_A_LOAN = 8
"""Each takes some 100 µs; then threads that run models may have the interpreter's lock."""
MAX_UNREAD_BYTES = 256 * 1024
"""Of answers on one connection that wait for their caller: everybody may ask."""


class GrpcReflection:
    """Answers by the descriptors of this process, one question in a turn of the event loop.

    Args:
        services: their names.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)
        self._servicer: Any = None
        self._asking: deque[_Questions] = deque()
        """Calls by their questions, in order."""
        self._task: asyncio.Task[None] | None = None

    def open(self, connection: CallConnection, head: GrpcHead, stream: int) -> "_Questions":
        """A call that answers one question after the other."""
        return _Questions(self, connection, head, stream)

    def ask(self, call: "_Questions") -> None:
        """A call has one more question."""
        self._asking.append(call)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        answered = 0
        while self._asking:
            call = self._asking.popleft()
            if call.waiting:
                try:
                    call.answer(await self._answer(call.waiting[0]))
                except InvalidRequestError as error:
                    call.refuse(error)
                except Exception as error:
                    logger.exception("a call failed in the gateway")
                    call.fail(failure(error))
                await asyncio.sleep(0)  # the loop has its turn
                answered += 1
                if answered % ANSWERS_A_LOAN == 0:
                    lend_lock()

    async def _answer(self, message: bytes) -> bytes:
        """Answers one question; grpcio, which is not needed else, is imported for the first.

        Raises:
            InvalidRequestError: it is none.
        """
        question = parsed(pb.ServerReflectionRequest, message)
        if self._servicer is None:
            self._servicer = await asyncio.to_thread(self._open)
        (found,) = self._servicer.ServerReflectionInfo(iter((question,)), None)
        answer: bytes = found.SerializeToString()
        return answer

    def _open(self) -> Any:
        from grpc_reflection.v1alpha.reflection import ReflectionServicer

        return ReflectionServicer(self._services)


class _Questions(Call):
    """A call of many messages, each with an answer.

    Attributes:
        waiting: questions without an answer, as they came: read, each takes ten times the memory.
    """

    __slots__ = ("_reflection", "_waiting_bytes", "waiting")

    def __init__(
        self, reflection: GrpcReflection, connection: CallConnection, head: GrpcHead, stream: int
    ) -> None:
        super().__init__(connection, head, stream)
        self._reflection = reflection
        self.waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    def take(self, message: Body) -> None:
        """A question."""
        self._check_read()
        if len(self.waiting) + len(self.unsent or ()) >= MAX_WAITING:
            raise InvalidRequestError(f"over {MAX_WAITING} questions at once; await the answers")
        self.waiting.append(bytes(message))
        size = len(message) + QUESTION_BYTES
        self._waiting_bytes += size
        self.connection.unfinished_bytes += size
        self._reflection.ask(self)

    def answer(self, answer: bytes) -> None:
        """The first question has its answer, unless nobody waits for it any more."""
        if self.is_over:
            return
        try:
            self._check_read()
        except UnreadAnswersError as error:
            self.connection.refuse(self, error)
            return
        self.waiting.popleft()
        self.send(answer)
        if not self.waiting:
            self.forget_input()
            if self.has_ended:
                self.finish()

    def end_input(self) -> None:
        """There are no more questions."""
        if not self.waiting:
            self.finish()

    def abandon(self) -> None:
        """Nobody waits for answers."""
        self.waiting.clear()

    def forget_input(self) -> None:
        """Questions, too."""
        super().forget_input()
        self.connection.unfinished_bytes -= self._waiting_bytes
        self._waiting_bytes = 0

    def _check_read(self) -> None:
        if self.connection.sending.unsent_bytes > MAX_UNREAD_BYTES:
            raise UnreadAnswersError(
                f"{MAX_UNREAD_BYTES} bytes of answers on this connection wait for their caller, "
                "the limit of reflection; take them first"
            )
