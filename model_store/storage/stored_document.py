"""Reads JSON documents of a store by their schemas."""

from typing import TypeVar

from pydantic import BaseModel

from model_store.document import SMALL, DocumentLimits, parse_as
from model_store.storage.storage import MissingFileError, Storage

M = TypeVar("M", bound=BaseModel)


def stored_document(
    storage: Storage, path: str, schema: type[M], limits: DocumentLimits = SMALL
) -> M | None:
    """Reads a document; None if there is none.

    Raises:
        DocumentError: it is damaged.
        StorageError: the store cannot be read.
    """
    try:
        return parse_as(schema, storage.get(path, limits.max_bytes), path, limits)
    except MissingFileError:
        return None
