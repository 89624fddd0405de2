"""grpc.health.v1: reports the server's readiness, once or as a watch.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from collections import Counter
from collections.abc import Iterable

from grpc_health.v1 import health_pb2 as pb

from services.errors import NotFoundError, ServingError, TooManyInFlightError
from services.wire.body import Body
from services.wire.http2.call_connection import CallConnection
from services.wire.http2.grpc_call import UnaryCall, parsed
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.simple_call import SimpleCall

SERVICE = "grpc.health.v1.Health"
MAX_WATCHES = 2048
"""Watches of all connections: each is a long-lived call, and a change goes to all in one turn."""
MAX_WATCHES_A_CONNECTION = 16
"""A client's channel has one watch. Watching needs no credential."""

_SERVING = pb.HealthCheckResponse.SERVING
_NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class GrpcHealth:
    """Answers checks and notifies watches.

    Args:
        services: names of services; the empty name stands for the whole server.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._is_ready = False
        self._watches: set[_Watch] = set()
        self._by_connection: Counter[CallConnection] = Counter()

    def announce(self, is_ready: bool) -> None:
        """Notifies the watches if the readiness changed."""
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            for watch in tuple(self._watches):
                watch.send(self._status(watch.service))

    def check(self, message: Body, call: SimpleCall) -> None:
        """Answers one check.

        Raises:
            NotFoundError: there is no such service.
            InvalidRequestError: the message cannot be parsed.
        """
        service = parsed(pb.HealthCheckRequest, message).service
        if service not in self._services:
            raise NotFoundError(f"unknown service '{service[:128]}'")
        call.reply(self._status(service))

    def list(self, _: Body, call: SimpleCall) -> None:
        """Answers with the status of every service."""
        call.reply(b"".join(map(self._entry, sorted(self._services))))

    def _entry(self, service: str) -> bytes:
        """Returns an entry of `HealthListResponse.statuses`, which older packages do not have.

        Source: Protocol Buffers, encoding: a map is a list of messages with a key and a value.
        """
        fields = _field(1, service.encode()) + _field(2, self._status(service))
        return _field(1, fields)

    def watch(self, connection: CallConnection, head: GrpcHead, stream: int) -> "_Watch":
        """Opens a call that receives every change."""
        return _Watch(self, connection, head, stream)

    def begin(self, watch: "_Watch") -> None:
        """Sends a new watch the current state, and later every change.

        Raises:
            TooManyInFlightError: the limit of watches is reached.
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
        """Removes a watch."""
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


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of under 128 bytes with its length."""
    assert len(content) < 128, "the names of services are short"
    return bytes((number << 3 | 2, len(content))) + content


class _Watch(UnaryCall):
    """A call that lasts until its caller disconnects."""

    __slots__ = ("_health", "service")

    def __init__(
        self, health: GrpcHealth, connection: CallConnection, head: GrpcHead, stream: int
    ) -> None:
        super().__init__(connection, head, stream)
        self._health = health
        self.service = ""

    def begin(self, message: Body) -> None:
        """Sends the current state, and then every change."""
        try:
            self.service = parsed(pb.HealthCheckRequest, message).service
            self._health.begin(self)
        except ServingError as error:
            self.fail(error)

    def abandon(self) -> None:
        """Ends the watch: its caller has disconnected."""
        self._health.forget(self)
