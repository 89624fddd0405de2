"""Reflection: describes the server's calls and messages to tools such as grpcurl.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as pb

from services.errors import InvalidRequestError, UnreadAnswersError
from services.interpreter_lock import lend_lock
from services.wire.body import Body
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_call import Call, parsed
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.simple_call import failure

logger = logging.getLogger("flambeau.grpc")

SERVICE = "grpc.reflection.v1alpha.ServerReflection"
SERVICE_V1 = "grpc.reflection.v1.ServerReflection"
"""The same messages under another name, for which there is no package of Python."""
V1_FILE = "grpc/reflection/v1/reflection.proto"
MAX_WAITING = 64
"""Requests of one call that may wait for responses, and responses for their caller."""
QUESTION_BYTES = 64
"""Memory of a waiting request beside its own bytes."""
ANSWERS_A_LOAN = 8
"""Each takes some 100 µs; then inference threads may take the interpreter lock."""
MAX_UNREAD_BYTES = 256 * 1024
"""Unread responses of one connection: unauthenticated clients may ask."""


class GrpcReflection:
    """Answers from the descriptors of this process, one request a turn of the event loop.

    Args:
        services: names of the services.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)
        self._servicer: Any = None
        self._asking: deque[_Questions] = deque()
        """The call of each waiting request, in order."""
        self._task: asyncio.Task[None] | None = None

    def open(self, connection: CallConnection, head: GrpcHead, stream: int) -> "_Questions":
        """Opens a call that answers one request after the other."""
        return _Questions(self, connection, head, stream)

    def ask(self, call: "_Questions") -> None:
        """Queues one more request of a call."""
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
        """Answers one request; the first one imports grpcio, which nothing else needs.

        Raises:
            InvalidRequestError: it cannot be parsed.
        """
        question = parsed(pb.ServerReflectionRequest, message)
        if self._servicer is None:
            self._servicer = await asyncio.to_thread(self._open)
        (found,) = self._servicer.ServerReflectionInfo(iter((question,)), None)
        answer: bytes = found.SerializeToString()
        return answer

    def _open(self) -> Any:
        from grpc_reflection.v1alpha.reflection import ReflectionServicer

        _add_v1()
        return ReflectionServicer(self._services)


def _add_v1() -> None:
    """Adds the descriptors of the newer name to those of this process."""
    pool = descriptor_pool.Default()
    with contextlib.suppress(KeyError):
        pool.FindFileByName(V1_FILE)
        return
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.ClearField("options")  # for the code of other languages
    file.name, file.package = V1_FILE, "grpc.reflection.v1"
    for message in file.message_type:
        for field in (one for one in message.field if one.type_name):
            field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
        method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    pool.Add(file)


class _Questions(Call):
    """A streaming call with one response for each message.

    Attributes:
        waiting: unanswered requests, unparsed: a parsed one takes ten times the memory.
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
        """Receives a request."""
        self._check_read()
        if len(self.waiting) + len(self.unsent or ()) >= MAX_WAITING:
            raise InvalidRequestError(f"over {MAX_WAITING} questions at once; await the answers")
        self.waiting.append(bytes(message))
        size = len(message) + QUESTION_BYTES
        self._waiting_bytes += size
        self.connection.unfinished_bytes += size
        self._reflection.ask(self)

    def answer(self, answer: bytes) -> None:
        """Sends the response of the first request, unless the caller has disconnected."""
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
        """Records that no more requests will arrive."""
        if not self.waiting:
            self.finish()

    def abandon(self) -> None:
        """Drops the call: its caller has disconnected."""
        self.waiting.clear()

    def forget_input(self) -> None:
        """Drops the buffered input, including waiting requests."""
        super().forget_input()
        self.connection.unfinished_bytes -= self._waiting_bytes
        self._waiting_bytes = 0

    def _check_read(self) -> None:
        if self.connection.sending.unsent_bytes > MAX_UNREAD_BYTES:
            raise UnreadAnswersError(
                f"{MAX_UNREAD_BYTES} bytes of answers on this connection wait for their caller, "
                "the limit of reflection; take them first"
            )
