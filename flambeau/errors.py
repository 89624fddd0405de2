"""Everything a call through the client can raise, as one tree.

ClientError
├── AddressError              INVALID_ARGUMENT    the address is none of gRPC's; a ValueError too
├── InvalidRequestError       INVALID_ARGUMENT    the inputs do not fit the model
│   └── MessageTooLargeError  RESOURCE_EXHAUSTED  over a limit on bytes, here or at the server
├── NotFoundError             NOT_FOUND           no such model or version is served
├── DeadlineError             DEADLINE_EXCEEDED   no answer in time
├── OverloadedError           RESOURCE_EXHAUSTED  the server refused the work: retry later
├── UnavailableError          UNAVAILABLE         no server there, or it drains; retried already
└── ServerError               any other code      the server or the model failed

A message is what the server wrote. An error found before anything was sent carries the code the
server would have answered.
"""

from typing import ClassVar

GRPC_ADDRESS = "give HOST:PORT of gRPC, usually 8001 (8004 of a training service)"


class ClientError(Exception):
    """Root of the tree.

    Attributes:
        grpc_code: the name of the gRPC status code, such as `NOT_FOUND`.
        retryable: whether the same call may succeed later.
    """

    grpc_code: str = "UNKNOWN"
    retryable: ClassVar[bool] = False


class AddressError(ClientError, ValueError):
    """An address that no gRPC server can have; nothing was sent."""

    grpc_code = "INVALID_ARGUMENT"


class InvalidRequestError(ClientError):
    """A name, datatype, shape or value that the model does not take."""

    grpc_code = "INVALID_ARGUMENT"


class MessageTooLargeError(InvalidRequestError):
    """A request or an answer with more bytes than this client or the server lets through."""

    grpc_code = "RESOURCE_EXHAUSTED"


class NotFoundError(ClientError):
    """The server does not serve this model, or not this version of it."""

    grpc_code = "NOT_FOUND"


class DeadlineError(ClientError):
    """The time of the call ran out; the server drops the work."""

    grpc_code = "DEADLINE_EXCEEDED"
    retryable = True


class OverloadedError(ClientError):
    """The server has all the work it takes and never started this; wait before trying again."""

    grpc_code = "RESOURCE_EXHAUSTED"
    retryable = True


class UnavailableError(ClientError):
    """Nothing answers at the address, or the server drains, or the model still loads."""

    grpc_code = "UNAVAILABLE"
    retryable = True


class ServerError(ClientError):
    """The server failed, or its answer breaks the protocol."""

    grpc_code = "INTERNAL"

    def __init__(self, message: str, grpc_code: str = "INTERNAL") -> None:
        super().__init__(message)
        self.grpc_code = grpc_code


_BY_CODE: dict[str, type[ClientError]] = {
    error.grpc_code: error
    for error in (
        InvalidRequestError,
        NotFoundError,
        DeadlineError,
        OverloadedError,
        UnavailableError,
    )
}


def from_status(grpc_code: str, details: str, timeout_s: float) -> ClientError:
    """The error for a gRPC status.

    Args:
        grpc_code: name of the status code.
        details: the message of the status, empty if the server wrote none.
        timeout_s: the deadline of the call in seconds, for the message.
    """
    if grpc_code == "RESOURCE_EXHAUSTED" and "message larger than max" in details:
        # gRPC's own words, the only thing that tells a limit on bytes from a server that is full.
        return MessageTooLargeError(
            f"{details}; split the batch, or raise the limit: "
            "max_message_bytes of the client, or the server's"
        )
    if grpc_code == "DEADLINE_EXCEEDED" and details in ("", "Deadline Exceeded"):
        return DeadlineError(f"no answer within {timeout_s:g} s; raise timeout_s or send less")
    if grpc_code == "UNAVAILABLE" and details.startswith("failed to connect"):
        spoken = "HTTP/2" in details  # gRPC's words for a server that speaks something else
        details += (
            f"; this is no port of gRPC: {GRPC_ADDRESS}"
            if spoken
            else ("; check the address, and that a server runs there")
        )
    message = details or f"the server answered {grpc_code} and no message"
    leaf = _BY_CODE.get(grpc_code)
    return ServerError(message, grpc_code) if leaf is None else leaf(message)
