"""grpc.health.v1: whether the server is ready, asked once or watched.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from collections import Counter
from collections.abc import Iterable

from grpc_health.v1 import health_pb2 as pb

from services.errors import NotFoundError, ServingError, TooManyInFlightError
from services.gateway.wire.body import Body
from services.gateway.wire.http2.call_connection import CallConnection
from services.gateway.wire.http2.grpc_call import SimpleCall, UnaryCall, parsed
from services.gateway.wire.http2.grpc_head import GrpcHead

SERVICE = "grpc.health.v1.Health"
MAX_WATCHES = 2048
"""Of all connections: each is a call that lasts, and a change is told to all in one turn."""
MAX_WATCHES_A_CONNECTION = 16
"""A channel of a client has one. Watching needs no credential."""

_SERVING = pb.HealthCheckResponse.SERVING
_NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class GrpcHealth:
    """Tells everybody.

    Args:
        services: their names; the server as a whole has the empty one.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._is_ready = False
        self._watches: set[_Watch] = set()
        self._by_connection: Counter[CallConnection] = Counter()

    def announce(self, is_ready: bool) -> None:
        """Tells those who watch, if it is news."""
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            for watch in tuple(self._watches):
                watch.send(self._status(watch.service))

    def check(self, message: Body, call: SimpleCall) -> None:
        """Answers once.

        Raises:
            NotFoundError: there is no such service.
            InvalidRequestError: the message is none.
        """
        service = parsed(pb.HealthCheckRequest, message).service
        if service not in self._services:
            raise NotFoundError(f"no service '{service[:128]}' is here")
        call.reply(self._status(service))

    def watch(self, connection: CallConnection, head: GrpcHead, stream: int) -> "_Watch":
        """A call that is answered at every change."""
        return _Watch(self, connection, head, stream)

    def begin(self, watch: "_Watch") -> None:
        """Tells a new watch what is, and from now on what changes.

        Raises:
            TooManyInFlightError: there are as many as may be.
        """
        mine = self._by_connection[watch.connection]
        if len(self._watches) >= MAX_WATCHES or mine >= MAX_WATCHES_A_CONNECTION:
            raise TooManyInFlightError(
                f"{len(self._watches)} calls of Watch are open, {mine} of them on this connection; "
                f"at most {MAX_WATCHES} and {MAX_WATCHES_A_CONNECTION} may be: end some, or call "
                "Check"
            )
        self._watches.add(watch)
        self._by_connection[watch.connection] += 1
        watch.send(self._status(watch.service))

    def forget(self, watch: "_Watch") -> None:
        """Somebody watches no more."""
        if watch in self._watches:
            self._watches.remove(watch)
            self._by_connection[watch.connection] -= 1
            if not self._by_connection[watch.connection]:
                del self._by_connection[watch.connection]

    def _status(self, service: str) -> bytes:
        status = _SERVING if self._is_ready else _NOT_SERVING
        if service not in self._services:
            status = _UNKNOWN
        told: bytes = pb.HealthCheckResponse(status=status).SerializeToString()
        return told


class _Watch(UnaryCall):
    """A call that lasts until its caller leaves."""

    __slots__ = ("_health", "service")

    def __init__(
        self, health: GrpcHealth, connection: CallConnection, head: GrpcHead, stream: int
    ) -> None:
        super().__init__(connection, head, stream)
        self._health = health
        self.service = ""

    def begin(self, message: Body) -> None:
        """Tells what is, and then what changes."""
        try:
            self.service = parsed(pb.HealthCheckRequest, message).service
            self._health.begin(self)
        except ServingError as error:
            self.fail(error)

    def abandon(self) -> None:
        """The caller has left."""
        self._health.forget(self)
