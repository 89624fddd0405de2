"""Errors of the TorchServe door as gRPC statuses, as TorchServe 0.12 gives them. Pure.

In: refusals of its core, and errors of the request path. Out: errors whose code and message are
TorchServe's: a message, and the name of a class of Java in a second line.
"""

from services.errors import (
    DeadlineExceededError,
    OverloadedError,
    PayloadTooLargeError,
    QueueFullError,
    ServingError,
    ShuttingDownError,
    WouldMissDeadlineError,
)
from services.gateway.torchserve.refusals import (
    DOWNLOAD,
    INVALID_MODEL,
    MODEL_NOT_FOUND,
    UNAVAILABLE,
    VERSION_NOT_FOUND,
    Refusal,
    caller_words,
    refusal_of,
)
from services.wire.errors import ReceiveTimeoutError

_PACKAGE = "org.pytorch.serve"
_PACKAGES = {
    MODEL_NOT_FOUND: f"{_PACKAGE}.archive.model",
    VERSION_NOT_FOUND: f"{_PACKAGE}.archive.model",
    INVALID_MODEL: f"{_PACKAGE}.archive.model",
    DOWNLOAD: f"{_PACKAGE}.archive",
}
"""Packages of the classes; those of others are in `_PACKAGE.http`."""
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    416: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Codes of gRPC by status of HTTP."""
_OF_GRPC = (
    DeadlineExceededError,
    OverloadedError,
    PayloadTooLargeError,
    ReceiveTimeoutError,
    ShuttingDownError,
)
"""Errors that gRPC has codes for, and TorchServe no words."""


class StatusError(ServingError):
    """An error with a code and a message of its own.

    Args:
        code: name of the gRPC status.
        message: its message.
        reason: second line: a class of Java.
    """

    def __init__(self, code: str, message: str, reason: str = "") -> None:
        message = text_of(message)
        super().__init__(f"{message}\n{reason}" if reason else message)
        self.message, self.reason = message, reason
        self._code = code

    @property
    def grpc_code(self) -> str:  # type: ignore[override]  # of the object, not of its class
        """Name of the gRPC status."""
        return self._code


def text_of(text: str) -> str:
    """Returns a text that protobuf can hold: lone surrogates, which UTF-8 has not, are `?`."""
    return text.encode(errors="replace").decode()


def no_model_name() -> StatusError:
    """Returns the error of a prediction that names no model."""
    return StatusError("INTERNAL", "Parameter model_name is required.", "BadRequestException.()")


def model_api_is_off() -> StatusError:
    """Returns the error of a registration that the settings do not allow."""
    reason = f"{_PACKAGE}.archive.model.ModelException"
    return StatusError("PERMISSION_DENIED", "Model API disabled", reason)


def has_status(error: ServingError) -> bool:
    """Returns True for an error with a status of its own: TorchServe has no words for it."""
    return isinstance(error, (StatusError, *_OF_GRPC)) and not isinstance(error, QueueFullError)


def of_prediction(error: ServingError) -> ServingError:
    """Returns an error of a prediction."""
    if isinstance(error, WouldMissDeadlineError):
        return StatusError(DeadlineExceededError.grpc_code, caller_words(str(error)))
    if has_status(error):
        words = caller_words(str(error))
        return error if words == str(error) else StatusError(error.grpc_code, words)
    refusal = refusal_of(error)
    if refusal.kind == UNAVAILABLE:
        return StatusError("INTERNAL", refusal.message, "InternalServerException.()")
    if refusal.kind in (MODEL_NOT_FOUND, VERSION_NOT_FOUND):
        return StatusError("INTERNAL", refusal.message, _class_of(refusal))
    return StatusError(
        _code_of(refusal.code), refusal.message, f"{_PACKAGE}.http.InternalServerException"
    )


def of_management(error: ServingError) -> ServingError:
    """Returns an error of a management call."""
    if has_status(error):
        return error
    refusal = refusal_of(error)
    return StatusError(_code_of(refusal.code), refusal.message, _class_of(refusal))


def _class_of(refusal: Refusal) -> str:
    return f"{_PACKAGES.get(refusal.kind, f'{_PACKAGE}.http')}.{refusal.kind}"


def _code_of(status: int) -> str:
    usual = "FAILED_PRECONDITION" if status < 500 else "INTERNAL"
    return _CODES.get(status, usual)
