"""Every way a request can be refused or fail, as one tree.

ServingError
├── InvalidRequestError         400 INVALID_ARGUMENT    the request contradicts itself or the model
│   └── PayloadTooLargeError    413 RESOURCE_EXHAUSTED
├── UnauthenticatedError        401 UNAUTHENTICATED     the caller's token is missing or unknown
├── NotAllowedError             403 PERMISSION_DENIED   nobody may do this here, by the settings
├── AccessUnavailableError      503 UNAVAILABLE         retry: what proves a token is being fetched
├── RateLimitedError            429 RESOURCE_EXHAUSTED  retry when it says
├── NotFoundError               404 NOT_FOUND
│   ├── UnknownModelError
│   ├── UnknownVersionError
│   ├── UnknownArtifactError
│   ├── UnknownJobError
│   └── UnknownPathError
├── ForbiddenError              403 PERMISSION_DENIED   the caller may not ask for this
├── ConflictError               409 ALREADY_EXISTS      the same name for something else
├── JobNotOverError             409 FAILED_PRECONDITION there is no result, or not yet
├── JobFailedError              500 INTERNAL            there will be none
├── MethodNotAllowedError       405 UNIMPLEMENTED
├── UnsupportedError            501 UNIMPLEMENTED       an extension this server does not offer
├── ModelNotReadyError          503 UNAVAILABLE         loading, or refused at load
├── ShuttingDownError           503 UNAVAILABLE         retry on another server
├── QueueUnavailableError       503 UNAVAILABLE         retry later
├── OverloadedError             503 RESOURCE_EXHAUSTED  retry later
│   ├── QueueFullError
│   ├── TooManyInFlightError
│   ├── OverShareError
│   ├── BufferFullError
│   ├── UnreadAnswersError
│   └── WouldMissDeadlineError
├── DeadlineExceededError       504 DEADLINE_EXCEEDED
└── BackendError                500 INTERNAL            the model itself failed
    ├── DeadLetterError
    ├── InputRefusedError       400 INVALID_ARGUMENT    the model's own code refuses this input
    └── DeviceError             503 UNAVAILABLE         what runs the model failed, not the model
        └── WorkerProcessDiedError

A leaf carries its HTTP status, its gRPC code and whether a retry helps, as plain values, so that
no edge decides any of it.
"""

import math
from typing import ClassVar

USUAL_WAIT_S = 1
"""Until a retry, where nothing better is known."""


class ServingError(Exception):
    """Root of the tree. The message says what was wrong, which value, and what to do."""

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False
    wait_s: float | None = None
    """Seconds until a retry may help, where that is known."""

    @property
    def retry_after_s(self) -> int:
        """Whole seconds after which a retry is worth one, if one may help at all."""
        return USUAL_WAIT_S if self.wait_s is None else math.ceil(self.wait_s)


class InvalidRequestError(ServingError):
    """The request contradicts the protocol, itself or the model's signature."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class PayloadTooLargeError(InvalidRequestError):
    """The body is over `max_request_bytes`."""

    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class UnauthenticatedError(ServingError):
    """The call needs a token, and has none or one that nobody knows."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"


class CodeNotAllowedError(ServingError):
    """The settings of this server allow it to nobody, or not to this caller."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class AccessUnavailableError(ServingError):
    """The keys that prove a token are not here yet; they are being fetched."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class RateLimitedError(ServingError):
    """The caller asked for more than its rate.

    Args:
        message: what was too much.
        wait_s: seconds until it may ask again; the usual one is for an error that came from
            another process, as its words alone.
    """

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    retryable = True

    wait_s: float

    def __init__(self, message: str, wait_s: float = 1.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class NotFoundError(ServingError):
    """Something named in the request does not exist here."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class UnknownModelError(NotFoundError):
    """No model of this name is served."""


class UnknownVersionError(NotFoundError):
    """The model is served, this version of it is not."""


class UnknownArtifactError(NotFoundError):
    """The version is served, but not by an artifact like the one asked for."""


class UnknownJobError(NotFoundError):
    """No such job, or its result is no longer kept."""


class ForbiddenError(ServingError):
    """The server does this for others, or for nobody, as its settings say."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class ConflictError(ServingError):
    """Something of this name is there, and is not the same."""

    http_status = 409
    grpc_code = "ALREADY_EXISTS"


class JobNotOverError(ServingError):
    """The job has no result: not yet, or not any more."""

    http_status = 409
    grpc_code = "FAILED_PRECONDITION"


class JobFailedError(ServingError):
    """The job is over and has no result, for the reason that the message gives."""


class UnknownPathError(NotFoundError):
    """No such URL."""


class MethodNotAllowedError(ServingError):
    """The URL exists, the HTTP method does not fit it."""

    http_status = 405
    grpc_code = "UNIMPLEMENTED"


class UnsupportedError(ServingError):
    """A protocol extension that this server does not offer and does not advertise."""

    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class ModelNotReadyError(ServingError):
    """The version is loading, or was refused at load; the message says why."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class ShuttingDownError(ServingError):
    """The server drains and takes no new requests."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class QueueUnavailableError(ServingError):
    """What carries requests to the workers is out of reach; the request was not let in."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class OverloadedError(ServingError):
    """A limit on waiting work was hit; the request was never started."""

    http_status = 503
    grpc_code = "RESOURCE_EXHAUSTED"
    retryable = True


class QueueFullError(OverloadedError):
    """The version's queue holds `max_queue_depth` requests."""


class TooManyInFlightError(OverloadedError):
    """The gateway holds `max_in_flight_requests` requests, or as many as may wait to be read."""


class OverShareError(OverloadedError):
    """The caller holds its part of what is in flight, and others wait."""


class BufferFullError(OverloadedError):
    """The process holds `max_buffered_bytes` of requests and answers."""


class UnreadAnswersError(OverloadedError):
    """The connection's caller does not read the answers that it has."""


class WouldMissDeadlineError(OverloadedError):
    """By what was measured, the request cannot be done before its deadline."""


class DeadlineExceededError(ServingError):
    """The request's time ran out before its reply."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class BackendError(ServingError):
    """The model raised, or returned something other than its signature says."""


class DeadLetterError(BackendError):
    """The request ended the workers that ran it, and is kept for a person to look at."""


class InputRefusedError(BackendError):
    """The version's own Python step says that it cannot take this input, and why."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class DeviceError(BackendError):
    """What runs the model failed: a device out of memory or in error, a worker process that died.

    No input is to blame, so the requests of the batch are not run again one by one to find it.
    """

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class WorkerProcessDiedError(DeviceError):
    """The process that ran the model has ended; the message names its signal or exit code."""
