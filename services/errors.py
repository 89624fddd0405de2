"""Errors of requests that are refused or fail, as one tree.

ServingError
├── InvalidRequestError         400 INVALID_ARGUMENT    the request contradicts itself or the model
│   └── PayloadTooLargeError    413 RESOURCE_EXHAUSTED
├── UnauthenticatedError        401 UNAUTHENTICATED     the credential is missing or unknown
├── CodeNotAllowedError         403 PERMISSION_DENIED   the settings do not allow running this code
├── AccessUnavailableError      503 UNAVAILABLE         retry: keys for tokens are being fetched
├── RateLimitedError            429 RESOURCE_EXHAUSTED  retry after the given time
├── NotFoundError               404 NOT_FOUND
│   ├── UnknownModelError
│   ├── UnknownVersionError
│   ├── UnknownArtifactError
│   ├── UnknownJobError
│   └── UnknownPathError
├── ForbiddenError              403 PERMISSION_DENIED   the caller lacks the scope, or it is off
├── ConflictError               409 ALREADY_EXISTS      a different object has this name
├── JobNotOverError             409 FAILED_PRECONDITION the job has no result, or not yet
├── SequenceLostError           409 FAILED_PRECONDITION its state is gone; start it again
├── JobFailedError              500 INTERNAL            the job ended without a result
├── MethodNotAllowedError       405 UNIMPLEMENTED
├── UnsupportedError            501 UNIMPLEMENTED       an extension this server does not offer
├── ModelNotReadyError          503 UNAVAILABLE         loading, or refused at load
│   └── ModelReturningError     503 UNAVAILABLE         it made room, and is being loaded again
├── ControlModeError            503 UNAVAILABLE         callers do not load models here
├── ShuttingDownError           503 UNAVAILABLE         retry on another server
├── QueueUnavailableError       503 UNAVAILABLE         retry later
├── StoreUnavailableError       503 UNAVAILABLE         retry later
├── NoSpaceError                507 RESOURCE_EXHAUSTED  the store's disk is full
├── OverloadedError             503 RESOURCE_EXHAUSTED  retry later
│   ├── QueueFullError
│   ├── TooManyInFlightError
│   ├── OverShareError
│   ├── BufferFullError
│   ├── UnreadAnswersError
│   ├── WouldMissDeadlineError
│   └── DisplacedError                                  a mirrored request, while others wait
├── DeadlineExceededError       504 DEADLINE_EXCEEDED
└── BackendError                500 INTERNAL            the model itself failed
    ├── DeadLetterError
    ├── InputRefusedError       400 INVALID_ARGUMENT    the model refuses this input
    └── DeviceError             503 UNAVAILABLE         the device or process failed, not the model
        └── WorkerProcessDiedError

Each class carries its HTTP status, its gRPC code and whether it is retryable, as plain values, so
that the edges contain no mapping.
"""

import math
from typing import ClassVar

USUAL_WAIT_S = 1
"""Default delay before a retry."""


class ServingError(Exception):
    """Root of the tree. The message states the fault, the value and the remedy."""

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False
    wait_s: float | None = None
    """Seconds until a retry may succeed, if known."""

    @property
    def status(self) -> int:
        """HTTP status of this one: that of its class, unless it carries its own."""
        return self.http_status

    @property
    def retry_after_s(self) -> int:
        """Whole seconds to wait before a retry, if the error is retryable."""
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
    """The call needs a credential, and has none or an unknown one."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"


class CodeNotAllowedError(ServingError):
    """The settings of this server do not allow running this code, at all or for this caller."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class AccessUnavailableError(ServingError):
    """The keys that verify a token are not available yet; they are being fetched."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class RateLimitedError(ServingError):
    """The caller exceeded its rate.

    Args:
        message: the rate that was exceeded.
        wait_s: seconds until the caller may retry; the default is for an error from another
            process, which transmits only the message.
    """

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    retryable = True

    wait_s: float

    def __init__(self, message: str, wait_s: float = 1.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class NotFoundError(ServingError):
    """An object that the request names does not exist here."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class UnknownModelError(NotFoundError):
    """No model of this name is served."""


class UnknownVersionError(NotFoundError):
    """The model is served, but this version of it is not."""


class UnknownArtifactError(NotFoundError):
    """The version is served, but not by an artifact like the requested one."""


class UnknownJobError(NotFoundError):
    """No such job, or its result is no longer kept."""


class ForbiddenError(ServingError):
    """The server's settings deny this to the caller, or to everyone."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class ConflictError(ServingError):
    """A different object with this name exists already."""

    http_status = 409
    grpc_code = "ALREADY_EXISTS"


class JobNotOverError(ServingError):
    """The job has no result: not yet, or no longer."""

    http_status = 409
    grpc_code = "FAILED_PRECONDITION"


class NoSequenceError(InvalidRequestError):
    """A request without a sequence, to a model that keeps state over one."""


class SequenceLostError(ServingError):
    """The sequence was never started here, or its state is gone; the client starts it again."""

    http_status = 409
    grpc_code = "FAILED_PRECONDITION"


class JobFailedError(ServingError):
    """The job ended without a result, for the reason in the message."""


class UnknownPathError(NotFoundError):
    """No such URL."""


class MethodNotAllowedError(ServingError):
    """The URL exists, but does not support the HTTP method."""

    http_status = 405
    grpc_code = "UNIMPLEMENTED"


class UnsupportedError(ServingError):
    """A protocol extension that this server does not offer and does not advertise."""

    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class SeveralAnswersError(UnsupportedError):
    """A request that its model answers in several parts, or in none, by a call for one answer."""


class ModelNotReadyError(ServingError):
    """The version is loading, or was refused at load; the message has the reason."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class ModelReturningError(ModelNotReadyError):
    """The version made room for others, and is being loaded again since it is requested."""


class ControlModeError(ServingError):
    """The server does not serve the models that callers load; the status is Triton's."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class ShuttingDownError(ServingError):
    """The server drains and accepts no new requests."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class QueueUnavailableError(ServingError):
    """The queue to the workers is out of reach; the request was not admitted."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class StoreUnavailableError(ServingError):
    """The model store failed or is out of reach; nothing has changed."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class NoSpaceError(ServingError):
    """The disk of the model store has no space for the bytes; none of them are kept."""

    http_status = 507
    grpc_code = "RESOURCE_EXHAUSTED"


class OverloadedError(ServingError):
    """A limit on waiting requests was hit; the request was never started."""

    http_status = 503
    grpc_code = "RESOURCE_EXHAUSTED"
    retryable = True


class QueueFullError(OverloadedError):
    """The version's queue holds `max_queue_depth` requests."""


class TooManyInFlightError(OverloadedError):
    """The gateway holds `max_in_flight_requests`, or the most that may wait to be read."""


class OverShareError(OverloadedError):
    """The caller has used its fair share of the requests in flight, and others wait."""


class BufferFullError(OverloadedError):
    """The process holds `max_buffered_bytes` of requests and responses."""


class UnreadAnswersError(OverloadedError):
    """The client of the connection does not read its responses."""


class WouldMissDeadlineError(OverloadedError):
    """The request cannot finish before its deadline, by the measured execution times."""


class DisplacedError(OverloadedError):
    """Requests of callers kept a mirrored request from running; no caller gets this."""


class DeadlineExceededError(ServingError):
    """The request's deadline passed before its response."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class BackendError(ServingError):
    """The model raised, or returned outputs that do not match its signature."""


class DeadLetterError(BackendError):
    """The request crashed the workers that ran it, and is kept for an operator to inspect."""


class InputRefusedError(BackendError):
    """The model refuses this input: its Python step does, or it does not take the sizes.

    A backend gives the reason alone; the instance that runs it adds the model and its version.
    """

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class DeviceError(BackendError):
    """The runtime environment failed: a device is out of memory or in error, a worker process died.

    No input is at fault, so the requests of the batch are not rerun one by one to find it.
    """

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retryable = True


class WorkerProcessDiedError(DeviceError):
    """The worker process of the model has ended; the message names its signal or exit code.

    Args:
        message: all of it.
        how: the signal or exit code alone; empty for an error from another process.
    """

    def __init__(self, message: str, how: str = "") -> None:
        super().__init__(message)
        self.how = how
