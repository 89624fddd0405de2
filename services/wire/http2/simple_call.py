"""Unary gRPC calls off the hot path: a handler is a function of the message and the call."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from services.errors import ServingError
from services.wire.body import Body
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_call import UnaryCall
from services.wire.http2.grpc_head import GrpcHead

logger = logging.getLogger("flambeau.grpc")


class SimpleCall(UnaryCall):
    """A call whose handler is a function; an exception of it becomes the status."""

    __slots__ = ("_start", "_works")

    def __init__(
        self,
        start: "Callable[[Body, SimpleCall], None]",
        connection: CallConnection,
        head: GrpcHead,
        stream: int,
    ) -> None:
        super().__init__(connection, head, stream)
        self._start = start
        self._works = False

    @property
    def outlives_caller(self) -> bool:
        """True while a task works on it: the task holds the message and what it makes of it."""
        return self._works

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keeps the charge of the call until the block ends, whether or not its caller leaves."""
        self._works = True
        try:
            yield
        finally:
            self._works = False
            if self.is_over:
                self.release()

    def begin(self, message: Body) -> None:
        """Has the function begin."""
        try:
            self._start(message, self)
        except ServingError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("a call failed in the gateway")
            self.fail(failure(error))


def failure(error: Exception) -> ServingError:
    """Returns the caller's error for an internal fault; the log has the details."""
    return ServingError(f"the server failed on this request ({type(error).__name__}); see its log")
