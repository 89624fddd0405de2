"""The shooter for each form of request."""

from collections.abc import Sequence

from bench.loads.grpc_shooter import GrpcShooter
from bench.loads.rest_shooter import RestShooter
from bench.loads.shooter import Shooter
from bench.peers.peer import Ask, Form


def open_shooter(
    form: Form, http: str, grpc_address: str, asks: Sequence[Ask], timeout_s: float | None = None
) -> Shooter:
    """A shooter for one form.

    Args:
        form: how requests travel.
        http: host:port for the REST forms.
        grpc_address: host:port for gRPC.
        asks: what to send.
        timeout_s: deadline of each gRPC call; REST requests carry theirs.
    """
    if form is Form.GRPC:
        return GrpcShooter(grpc_address, asks, timeout_s)
    return RestShooter(http, asks)
