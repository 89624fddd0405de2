"""Creates the shooter for each protocol and body."""

from collections.abc import Sequence

from bench.loads.grpc_shooter import GrpcShooter
from bench.loads.rest_shooter import RestShooter
from bench.loads.shooter import Shooter
from bench.peers.peer import Ask, Form


def open_shooter(
    form: Form, http: str, grpc_address: str, asks: Sequence[Ask], timeout_s: float | None = None
) -> Shooter:
    """Opens a shooter for one form.

    Args:
        form: protocol and body of the requests.
        http: host:port for the REST forms.
        grpc_address: host:port for gRPC.
        asks: requests to send.
        timeout_s: deadline of each gRPC call; REST requests carry their own.
    """
    if form is Form.GRPC:
        return GrpcShooter(grpc_address, asks, timeout_s)
    return RestShooter(http, asks)
