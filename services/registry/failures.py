"""Errors of the model store as errors of calls.

In: a `StoreError`. Out: the `ServingError` with its status, and the same message.
"""

import contextlib
from collections.abc import Iterator

from model_store import errors as store
from services.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NoSpaceError,
    NotFoundError,
    OverloadedError,
    ServingError,
    StoreUnavailableError,
    UnknownModelError,
    UnknownVersionError,
)

_BY_KIND: dict[type[store.StoreError], type[ServingError]] = {
    store.BadNameError: InvalidRequestError,
    store.AnnotationError: InvalidRequestError,
    store.HistoryTooLongError: InvalidRequestError,
    store.UploadRefusedError: InvalidRequestError,
    store.PipelinePartError: InvalidRequestError,
    store.VersionNotFoundError: UnknownVersionError,
    store.UnknownUploadError: NotFoundError,
    store.UploadOffsetError: ConflictError,
    store.UploadIncompleteError: ConflictError,
    store.VersionInUseError: ConflictError,
    store.ConflictError: ConflictError,
    store.UploadBusyError: OverloadedError,
    store.TooManyUploadsError: OverloadedError,
    store.CryptographicSignatureError: ForbiddenError,
    store.StorageFullError: NoSpaceError,
    store.StorageError: StoreUnavailableError,
}
_OF_CALLERS = (store.ManifestError, store.DigestMismatchError)
"""Faults of files: those that a caller sends, or else those of the store."""


@contextlib.contextmanager
def store_failures(*, of_caller: bool = False) -> Iterator[None]:
    """Converts errors of the store in its block.

    Args:
        of_caller: True if the files that the block reads are the caller's.

    Raises:
        ServingError: the block raised a `StoreError`.
    """
    try:
        yield
    except store.StoreError as error:
        if isinstance(error, store.ModelNotFoundError):  # its hint may name others' models
            raise UnknownModelError("the registry has no such model") from error
        if of_caller and isinstance(error, _OF_CALLERS):
            raise InvalidRequestError(str(error)) from error
        kind = next((k for k in type(error).__mro__ if k in _BY_KIND), None)
        raise (_BY_KIND[kind] if kind else ServingError)(str(error)) from error
