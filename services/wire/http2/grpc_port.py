"""State shared by the connections of one gRPC port: its router, and the state of any port."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from services.interpreter_lock import lend_lock
from services.telemetry.metrics import Metrics
from services.wire.byte_budget import ByteBudget
from services.wire.compression import CompressionThread
from services.wire.http2.grpc_call import Call
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.headers import Fields
from services.wire.loop_turns import LoopTurns
from services.wire.open_port import OpenPort, PortLimits

DROPPED_A_TURN = 32
"""Calls of lost connections dropped in one turn."""
DROP_US = 15
"""Time to drop one of them."""

GrpcRouter = Callable[[GrpcHead], None]
"""Sets the `open` of a gRPC head, and its `refusal` if no message must be awaited."""


class GrpcPort(OpenPort):
    """One port.

    Args:
        router: router of calls to their handlers.
        limits: limits of a connection and a call.
        metrics: counters of refusals by limits.
        budget: budget of the bytes that the process buffers.
        turns: turns of the event loop, shared with other ports.
        compression: compression of large bodies, shared with other ports.
    """

    def __init__(
        self,
        router: GrpcRouter,
        limits: PortLimits,
        metrics: Metrics,
        budget: ByteBudget,
        turns: LoopTurns | None = None,
        compression: CompressionThread | None = None,
    ) -> None:
        super().__init__(limits, metrics, budget, turns, compression)
        self._router = router
        self.floods = metrics.http2_floods
        """Counter of connections that were ended for a flood, by the kind of its last frame."""
        # Calls of lost connections: those that wait for an answer, and those that have theirs.
        self._abandoned: deque[Call] = deque()
        self._over: deque[Call] = deque()
        self._drop_asked = False
        self._leaving_bytes = 0
        """Bytes charged for them until they are dropped: their memory is freed only then."""

    def keep_charge(self, size: int) -> None:
        """Charges the bytes of a lost connection until its calls are dropped."""
        self._leaving_bytes += size
        self.budget.held_bytes += size

    def drop(self, waiting: Iterable[Call], over: Iterable[Call]) -> None:
        """Drops calls of a lost connection, some in each turn of the loop: there may be thousands.

        Args:
            waiting: for their answer; none is given any more.
            over: those that have their status.
        """
        self._abandoned.extend(waiting)
        self._over.extend(over)
        if not self._drop_asked:
            self._drop_some()

    def _drop_some(self) -> None:
        left = len(self._abandoned) + len(self._over)
        self._drop_asked = bool(left)
        if left:
            asyncio.get_running_loop().call_soon(self._drop_some)
        if left > DROPPED_A_TURN:
            lend_lock()
        dropped = min(DROPPED_A_TURN, left)
        self.turns.count(DROP_US * dropped)
        for _ in range(dropped):
            waits = bool(self._abandoned)
            call = (self._abandoned if waits else self._over).popleft()
            call.connection.release(call)
            if waits:
                call.abandon()
        freed_bytes = self._leaving_bytes * dropped // left if left else self._leaving_bytes
        self._leaving_bytes -= freed_bytes
        self.budget.held_bytes -= freed_bytes

    def head_of(self, fields: Fields) -> GrpcHead:
        """Validates the fields of a call, and finds its handler.

        Raises:
            MalformedError: they are no request.
        """
        head = GrpcHead(fields)
        if not head.http_status:
            self._router(head)
        limit = self.limits.max_request_bytes
        head.max_bytes = limit if head.most_bytes is None else min(limit, head.most_bytes)
        return head
