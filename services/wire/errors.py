"""Errors of HTTP itself, as leaves of the tree in `services/errors.py`.

InvalidRequestError
├── HeadTooLargeError           431 RESOURCE_EXHAUSTED  request line and headers
└── ReceiveTimeoutError         408 DEADLINE_EXCEEDED   the request did not arrive in time
OverloadedError
└── TooManyConnectionsError     503 RESOURCE_EXHAUSTED  retry later
"""

from services.errors import InvalidRequestError, OverloadedError


class HeadTooLargeError(InvalidRequestError):
    """The request line and the headers are over the limit."""

    http_status = 431
    grpc_code = "RESOURCE_EXHAUSTED"


class ReceiveTimeoutError(InvalidRequestError):
    """The request did not arrive within `receive_timeout_s`."""

    http_status = 408
    grpc_code = "DEADLINE_EXCEEDED"


class TooManyConnectionsError(OverloadedError):
    """The HTTP port holds `max_connections` connections."""


def too_slow(limit_s: float, what: str = "request") -> ReceiveTimeoutError:
    """Returns the error of a request or message that takes too long to arrive."""
    return ReceiveTimeoutError(
        f"the {what} did not arrive within {limit_s:g} s (receive_timeout_s); "
        "send it faster or in smaller batches"
    )


def too_many_connections(limit: int) -> TooManyConnectionsError:
    """Returns the error of a connection beyond the limit."""
    return TooManyConnectionsError(
        f"{limit} connections are open here, the limit (max_connections); "
        "retry later or add servers"
    )
