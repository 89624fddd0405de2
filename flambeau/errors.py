"""Errors of calls through the client, as one tree.

ClientError
├── AddressError              INVALID_ARGUMENT    invalid gRPC address; a ValueError too
├── InvalidRequestError       INVALID_ARGUMENT    the inputs do not fit the model
│   └── MessageTooLargeError  RESOURCE_EXHAUSTED  over a limit on bytes, here or at the server
├── NotFoundError             NOT_FOUND           no such model or version is served
├── DeadlineError             DEADLINE_EXCEEDED   no response in time
├── OverloadedError           RESOURCE_EXHAUSTED  the server refused the work: retry later
├── UnavailableError          UNAVAILABLE         no server, or it drains; already retried
└── ServerError               any other code      the server or the model failed

The message is the server's. An error found before sending carries the code that the server would
have returned.
"""

from typing import ClassVar

GRPC_ADDRESS = "give HOST:PORT of gRPC, usually 8001 (8004 of a training service)"


class ClientError(Exception):
    """Root of the tree.

    Attributes:
        grpc_code: name of the gRPC status code, such as `NOT_FOUND`.
        retryable: True if the same call may succeed later.
    """

    grpc_code: str = "UNKNOWN"
    retryable: ClassVar[bool] = False


class AddressError(ClientError, ValueError):
    """An invalid address of a gRPC server; nothing was sent."""

    grpc_code = "INVALID_ARGUMENT"


class InvalidRequestError(ClientError):
    """A name, datatype, shape or value that the model does not accept."""

    grpc_code = "INVALID_ARGUMENT"


class MessageTooLargeError(InvalidRequestError):
    """A request or a response larger than the limit of this client or the server."""

    grpc_code = "RESOURCE_EXHAUSTED"


class NotFoundError(ClientError):
    """The server does not serve this model, or this version of it."""

    grpc_code = "NOT_FOUND"


class DeadlineError(ClientError):
    """The deadline of the call expired; the server drops the request."""

    grpc_code = "DEADLINE_EXCEEDED"
    retryable = True


class OverloadedError(ClientError):
    """The server is at capacity and never started the request; wait before a retry.

    Attributes:
        retry_after_s: seconds after which the server expects a retry to succeed; None if it said
            nothing, for such a refusal is not retried by the client.
    """

    grpc_code = "RESOURCE_EXHAUSTED"
    retryable = True
    retry_after_s: float | None = None


class UnavailableError(ClientError):
    """No server responds at the address, or it is draining, or the model is still loading."""

    grpc_code = "UNAVAILABLE"
    retryable = True


class ServerError(ClientError):
    """The server failed, or its response violates the protocol."""

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


def from_status(
    grpc_code: str, details: str, timeout_s: float, retry_after_s: float | None = None
) -> ClientError:
    """Returns the error for a gRPC status.

    Args:
        grpc_code: name of the status code.
        details: message of the status; empty if the server sent none.
        timeout_s: timeout of the call in seconds, for the message.
        retry_after_s: delay before a retry in seconds, if the server sent one.
    """
    if grpc_code == "RESOURCE_EXHAUSTED" and "message larger than max" in details:
        # Only gRPC's message distinguishes a size limit from an overloaded server.
        return MessageTooLargeError(
            f"{details}; split the batch, or raise the limit: "
            "max_message_bytes of the client, or the server's"
        )
    if grpc_code == "DEADLINE_EXCEEDED" and details in ("", "Deadline Exceeded"):
        return DeadlineError(f"no answer within {timeout_s:g} s; raise timeout_s or send less")
    if grpc_code == "UNAVAILABLE" and details.startswith("failed to connect"):
        spoken = "HTTP/2" in details  # gRPC's message for a server with another protocol
        details += (
            f"; this is not a gRPC port: {GRPC_ADDRESS}"
            if spoken
            else ("; check the address, and that a server runs there")
        )
    message = details or f"the server answered {grpc_code} without a message"
    leaf = _BY_CODE.get(grpc_code)
    error = ServerError(message, grpc_code) if leaf is None else leaf(message)
    if isinstance(error, OverloadedError):
        error.retry_after_s = retry_after_s
    return error
