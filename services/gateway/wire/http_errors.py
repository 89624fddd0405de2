"""What only HTTP itself can refuse, as leaves of the tree in `services/errors.py`.

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
