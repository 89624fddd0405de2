"""Refusals of the TorchServe door: code, type and message, as TorchServe 0.12 words them. Pure.

In: errors of the request path, of the registry and of handlers. Out: a `Refusal`, which each
protocol writes in its own form.

Source: the exceptions of TorchServe 0.12 and the codes that its HTTP server gives them.
"""

import re
from typing import NamedTuple

from services.errors import (
    BackendError,
    ConflictError,
    DeadlineExceededError,
    ForbiddenError,
    InputRefusedError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    ServingError,
    UnauthenticatedError,
    UnknownPathError,
    UnknownVersionError,
    WouldMissDeadlineError,
)
from services.wire.errors import HeadTooLargeError, ReceiveTimeoutError

BAD_REQUEST = "BadRequestException"
MODEL_NOT_FOUND = "ModelNotFoundException"
VERSION_NOT_FOUND = "ModelVersionNotFoundException"
RESOURCE_NOT_FOUND = "ResourceNotFoundException"
METHOD_NOT_ALLOWED = "MethodNotAllowedException"
CONFLICT = "ConflictStatusException"
DEFAULT_VERSION = "InvalidModelVersionException"
DOWNLOAD = "DownloadArchiveException"
INVALID_KEY = "InvalidKeyException"
INVALID_MODEL = "InvalidModelException"
TIMED_OUT = "RequestTimeoutException"
UNAVAILABLE = "ServiceUnavailableException"
INTERNAL = "InternalServerException"

NO_SUCH_RESOURCE = "Requested resource is not found, please refer to API document."
NO_SUCH_METHOD = "Requested method is not allowed, please refer to API document."
NOT_AUTHORIZED = (
    "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
)
NO_KEY = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
"""Words of the token API."""
WORKER_DIED = "Worker died."
_LANE = re.compile(r"(\bmodel '[^']*') version \d+")
"""A model with the number of its version in the server's own store, which callers do not know."""
_SETTINGS = (
    ("max_request_bytes; of a training service max_bundle_bytes", "max_request_size"),
    ("max_request_bytes", "max_request_size"),
    ("execution_timeout_s", "responseTimeout"),
    ("open_time_limit_s", "startupTimeout"),
)
"""Names of settings, and what TorchServe's configuration calls them."""


class Refusal(NamedTuple):
    """An error of TorchServe."""

    code: int
    """Status of HTTP."""
    kind: str
    """Its `type`: the name of the exception."""
    message: str


class RefusedError(ServingError):
    """A call that is refused in TorchServe's words.

    Args:
        refusal: code, type and message.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal

    @property
    def status(self) -> int:
        """The code of the refusal."""
        return self.refusal.code


def bad_request(message: str) -> RefusedError:
    """Returns the error of a call with a missing or wrong parameter."""
    return RefusedError(Refusal(400, BAD_REQUEST, message))


def model_not_found(name: str) -> RefusedError:
    """Returns the error of a model that is not registered."""
    return RefusedError(Refusal(404, MODEL_NOT_FOUND, f"Model not found: {name[:1000]}"))


def version_not_found(name: str, version: str) -> RefusedError:
    """Returns the error of a version that is not registered."""
    words = f"Model version: {version[:1000]} does not exist for model: {name}"
    return RefusedError(Refusal(404, VERSION_NOT_FOUND, words))


def no_worker(name: str, version: str = "", what: str = "inference") -> RefusedError:
    """Returns the error of a version without workers, or with a full queue.

    Args:
        name: name of the model.
        version: version that the caller named; empty for none.
        what: `inference` or `describe`.
    """
    named = f'{name}" Version {version}' if version else name
    words = (
        f'Model "{named}" has no worker to serve {what} request. Please use scale workers API to '
        "add workers."
    )
    if what == "inference":
        words += (
            " If this is a sequence inference, please check if it is closed, or expired; or "
            "exceeds maxSequenceJobQueueSize"
        )
    return RefusedError(Refusal(503, UNAVAILABLE, words))


def refusal_of(error: ServingError) -> Refusal:
    """Returns an error as TorchServe would have it.

    Words of errors that TorchServe does not know are the platform's own. A run that ended the
    process of its worker, or was ended with it, has TorchServe's; the log has the reason.
    """
    if isinstance(error, RefusedError):
        return error.refusal
    words = caller_words(str(error))
    if isinstance(error, PayloadTooLargeError):
        return Refusal(413, BAD_REQUEST, words)
    if isinstance(error, BackendError) and error.http_status >= 500:
        has_died = error.retryable or _LANE.search(str(error))
        return Refusal(500, INTERNAL, WORKER_DIED if has_died else words)
    for known, code, name in _KINDS:
        if isinstance(error, known):
            return Refusal(code, name, words)
    kind = UNAVAILABLE if error.http_status == 503 else INTERNAL
    return Refusal(error.http_status, kind, words)


def caller_words(text: str) -> str:
    """Returns words of the platform without its own version numbers and names of settings."""
    text = _LANE.sub(r"\1", text)
    for ours, theirs in _SETTINGS:
        text = text.replace(ours, theirs)
    return text


def code_of(error: ServingError) -> str:
    """Returns the code of an error in the accounting."""
    return str(refusal_of(error).code)


_KINDS: tuple[tuple[type[ServingError], int, str], ...] = (
    (ReceiveTimeoutError, 408, TIMED_OUT),
    (HeadTooLargeError, 431, BAD_REQUEST),
    (UnauthenticatedError, 400, INVALID_KEY),
    (UnknownPathError, 404, RESOURCE_NOT_FOUND),
    (UnknownVersionError, 404, VERSION_NOT_FOUND),
    (NotFoundError, 404, MODEL_NOT_FOUND),
    (MethodNotAllowedError, 405, METHOD_NOT_ALLOWED),
    (ConflictError, 409, CONFLICT),
    (ForbiddenError, 403, DEFAULT_VERSION),
    (DeadlineExceededError, 408, TIMED_OUT),
    (WouldMissDeadlineError, 408, TIMED_OUT),
    (InvalidRequestError, 400, BAD_REQUEST),
    (InputRefusedError, 400, BAD_REQUEST),
)
