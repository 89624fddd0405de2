"""What all connections of one gRPC port share, beside what those of any port do: who answers."""

from collections.abc import Callable

from services.gateway.wire.byte_budget import ByteBudget
from services.gateway.wire.grpc_head import GrpcHead
from services.gateway.wire.http2_headers import Fields
from services.gateway.wire.http_body import SMALL_BODY_BYTES
from services.gateway.wire.loop_turns import LoopTurns
from services.gateway.wire.open_port import OpenPort, PortLimits
from services.telemetry.metrics import Metrics

GrpcRouter = Callable[[GrpcHead], None]
"""Gives a head of gRPC its `open`, and a `refusal` if nothing more of it is to be waited for."""


class GrpcPort(OpenPort):
    """One port.

    Args:
        router: decides who answers a call.
        limits: what a connection and a call may cost.
        metrics: counts what the limits refuse.
        budget: of the bytes that the process holds.
        turns: of the event loop, where other ports share it.
    """

    def __init__(
        self,
        router: GrpcRouter,
        limits: PortLimits,
        metrics: Metrics,
        budget: ByteBudget,
        turns: LoopTurns | None = None,
    ) -> None:
        super().__init__(limits, metrics, budget, turns)
        self._router = router

    def head_of(self, fields: Fields) -> GrpcHead:
        """Judges the fields of a call, and finds who answers it.

        Raises:
            MalformedError: they are no request.
        """
        head = GrpcHead(fields)
        if not head.http_status:
            self._router(head)
        limit = self.limits.max_request_bytes
        head.max_bytes = min(limit, SMALL_BODY_BYTES) if head.takes_little else limit
        return head
