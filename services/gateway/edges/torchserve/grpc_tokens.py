"""TorchServe's tokens in the metadata of gRPC calls: `authorization: Bearer KEY`.

Source: TorchServe 0.12, whose answer to calls without a valid one this is.
"""

from services.gateway.edges.torchserve.grpc_statuses import StatusError
from services.gateway.torchserve.refusals import NOT_AUTHORIZED
from services.gateway.torchserve.tokens import Kind, Tokens
from services.wire.http2.grpc_head import GrpcHead


class GrpcToken:
    """The token of a call.

    Args:
        head: of the call.
        tokens: the server's.
        kind: kind of the call.
    """

    __slots__ = ("_header", "_kind", "_tokens")

    def __init__(self, head: GrpcHead, tokens: Tokens, kind: Kind) -> None:
        self._header = head.text("authorization")
        self._tokens, self._kind = tokens, kind

    def check(self) -> None:
        """Checks it, each time as of now.

        Raises:
            StatusError: it is missing, wrong, or has expired.
        """
        if not self._tokens.admits(self._header, self._kind):
            raise StatusError("PERMISSION_DENIED", NOT_AUTHORIZED)
