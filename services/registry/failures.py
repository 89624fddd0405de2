"""Errors of the model store as errors of calls.

In: a `StoreError`. Out: the `ServingError` with its status and message.

Rule: no message names a path of the server. The folders of the store and of the uploads are called
by words; the words of a failure of the system, which may name any path, are in the log alone.
"""

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping

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

logger = logging.getLogger("flambeau.registry")

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
    store.InvalidRolloutError: InvalidRequestError,
    store.RolloutError: ConflictError,
    store.BreakingVersionError: ConflictError,
    store.UnknownRequestError: NotFoundError,
    store.OwnRequestError: ForbiddenError,
    store.ApprovalError: ConflictError,
    store.ConflictError: ConflictError,
    store.UploadBusyError: OverloadedError,
    store.TooManyUploadsError: OverloadedError,
    store.CryptographicSignatureError: ForbiddenError,
    store.StorageFullError: NoSpaceError,
    store.StoreGoneError: StoreUnavailableError,
    store.StorageError: StoreUnavailableError,
}
_OF_CALLERS = (store.ManifestError, store.DigestMismatchError)
"""Faults of files: those that a caller sends, or else those of the store."""


_OF_SYSTEM = (store.StorageError, store.KeyFileError)
"""Failures whose words come from the system, or name the keys of the server."""
_FAILED = (
    "the registry's store or keys cannot be read or written now; the server's log has the reason"
)


class Places:
    """Folders and URLs of this server, by the words that callers see in their place.

    Args:
        words: words by path or URL.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        known = {**words, tempfile.gettempdir(): "a temporary folder"}
        known |= {os.path.realpath(path): said for path, said in known.items() if "://" not in path}
        self._words = {path: said for path, said in known.items() if len(path) > 1}
        names = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?:file://)?({names})(?:/[^\s'\":;,)]*)?(?![\w-])")

    def hidden_in(self, text: str) -> str:
        """Returns a text with words in place of the paths."""
        return self._pattern.sub(lambda found: self._words[found[1]], text)


@contextlib.contextmanager
def store_failures(places: Places, *, of_caller: bool = False) -> Iterator[None]:
    """Converts errors of the store in its block.

    Args:
        places: what no message names.
        of_caller: True if the files that the block reads are the caller's.

    Raises:
        ServingError: the block raised a `StoreError`.
    """
    try:
        yield
    except store.StoreError as error:
        if isinstance(error, store.ModelNotFoundError):  # its hint may name others' models
            raise UnknownModelError("the registry has no such model") from error
        if type(error) in _OF_SYSTEM:
            logger.error("a call of the registry failed", extra={"reason": str(error)})
            raise StoreUnavailableError(_FAILED) from error
        said = places.hidden_in(str(error))
        if of_caller and isinstance(error, _OF_CALLERS):
            raise InvalidRequestError(said) from error
        kind = next((k for k in type(error).__mro__ if k in _BY_KIND), None)
        raise (_BY_KIND[kind] if kind else ServingError)(said) from error
