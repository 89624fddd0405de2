"""Claims: records of the owner of a version's number, created before any other of its files.

<url>/<model>/<version>/claim.json     {"owner": "ann 5c1f…"}
"""

import json

from model_store.document import SMALL
from model_store.errors import ConflictError
from model_store.manifest import CLAIM
from model_store.storage.storage import MissingFileError, Storage

COPY = "copy of the manifest with sha256 "
"""Beginning of the owner of a copied version's number."""


def claim_path(model: str, version: int) -> str:
    """Returns the path of a claim in its store."""
    return f"{model}/{version}/{CLAIM}"


def claim_of(owner: str) -> bytes:
    """Returns the bytes of a claim."""
    return json.dumps({"owner": owner}).encode()


def owner_of_copy(manifest_sha256: str) -> str:
    """Returns the owner of a copied version's number: every copy of the same manifest is one."""
    return f"{COPY}{manifest_sha256}"


def refuse_claimed(storage: Storage, model: str, version: int, owner: str) -> None:
    """Refuses a number that has another owner.

    Raises:
        ConflictError: it has one.
        StorageError: the store cannot be read.
    """
    try:
        holder = storage.get(claim_path(model, version), SMALL.max_bytes)
    except MissingFileError:
        return
    if holder != claim_of(owner):
        raise ConflictError(
            f"version {version} of '{model}' in {storage.url} is taken by another publisher, "
            f"who wrote {holder.decode(errors='replace')}; publish under another number"
        )
