"""Reflection: what a server's calls and messages look like, for tools such as grpcurl.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from grpc_reflection.v1alpha import reflection_pb2 as pb

from services.errors import InvalidRequestError
from services.gateway.wire.grpc_call import Call, failure, parsed
from services.gateway.wire.grpc_head import GrpcHead
from services.gateway.wire.http_body import Body

if TYPE_CHECKING:
    from services.gateway.wire.grpc_connection import GrpcConnection

logger = logging.getLogger("flambeau.grpc")

SERVICE = "grpc.reflection.v1alpha.ServerReflection"
MAX_WAITING = 64
"""Questions of one call that may wait for their answers, and answers for their caller."""


class GrpcReflection:
    """Answers by the descriptors of this process.

    Args:
        services: their names.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)
        self._servicer: Any = None

    def open(self, connection: "GrpcConnection", head: GrpcHead, stream: int) -> "_Questions":
        """A call that answers one question after the other."""
        return _Questions(self, connection, head, stream)

    async def answer(self, question: pb.ServerReflectionRequest) -> bytes:
        """Answers one question; grpcio, which is not needed else, is imported for the first."""
        if self._servicer is None:
            self._servicer = await asyncio.to_thread(self._open)
        (found,) = self._servicer.ServerReflectionInfo(iter((question,)), None)
        answer: bytes = found.SerializeToString()
        return answer

    def _open(self) -> Any:
        from grpc_reflection.v1alpha.reflection import ReflectionServicer

        return ReflectionServicer(self._services)


class _Questions(Call):
    """A call of many messages, each with an answer; one task while there are any."""

    __slots__ = ("_reflection", "_task", "_waiting")

    def __init__(
        self, reflection: GrpcReflection, connection: "GrpcConnection", head: GrpcHead, stream: int
    ) -> None:
        super().__init__(connection, head, stream)
        self._reflection = reflection
        self._waiting: deque[pb.ServerReflectionRequest] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, message: Body) -> None:
        """A question."""
        self._waiting.append(parsed(pb.ServerReflectionRequest, message))
        if len(self._waiting) + len(self.unsent or ()) > MAX_WAITING:
            raise InvalidRequestError(f"over {MAX_WAITING} questions at once; await the answers")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    def end(self) -> None:
        """There are no more questions."""
        if self._task is None:
            self.finish()

    def abandon(self) -> None:
        """Nobody waits for answers."""
        self._waiting.clear()

    async def _answer(self) -> None:
        try:
            while self._waiting:
                self.send(await self._reflection.answer(self._waiting.popleft()))
        except Exception as error:
            logger.exception("a call failed in the gateway")
            self.fail(failure(error))
        self._task = None
        if self.has_ended:
            self.finish()
