"""Tombstones: records of deleted versions, whose numbers are never used again.

<url>/<model>/tombstones/00000003.json
"""

from datetime import datetime
from typing import Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.errors import VersionDeletedError
from model_store.storage.storage import Storage
from model_store.storage.stored_document import stored_document


class Tombstone(StrictModel):
    """The record of one deleted version."""

    schema_version: Literal[1] = 1
    model: str
    version: int = Field(ge=1)
    semver: str | None = None
    """Its semantic version, if it had one."""
    manifest_sha256: str
    """The sha256 of its manifest, by which copies of it are recognised."""
    who: str
    when: datetime
    why: str

    def to_json(self) -> bytes:
        """Returns the file's bytes."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def tombstone_path(model: str, version: int) -> str:
    """Returns the path of a tombstone in its store."""
    return f"{model}/tombstones/{version:08d}.json"


def tombstone_of(storage: Storage, model: str, version: int) -> Tombstone | None:
    """Returns the tombstone of a version; None if it was not deleted.

    Raises:
        DocumentError: it is damaged.
        StorageError: the store cannot be read.
    """
    return stored_document(storage, tombstone_path(model, version), Tombstone)


def refuse_deleted(storage: Storage, model: str, version: int) -> None:
    """Refuses a version that was deleted.

    Raises:
        VersionDeletedError: it was.
        StoreError: its tombstone is damaged, or the store cannot be read.
    """
    found = tombstone_of(storage, model, version)
    if found is not None:
        why = f": {found.why}" if found.why else ""
        raise VersionDeletedError(
            f"version {version} of '{model}' was deleted at {found.when:%Y-%m-%d %H:%M} by "
            f"{found.who}{why}; its number is not used again, so publish it under a new one"
        )
