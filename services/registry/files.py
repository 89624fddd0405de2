"""Files of versions for downloads: which there are, and the part that a Range header asks for."""

import hashlib
import re
from dataclasses import dataclass

from model_store.document import LARGE
from model_store.manifest import MANIFEST, SIGNATURE, check_name
from model_store.store import ModelStore, manifest_path, signature_path
from services.registry.documents import version_number

_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a version."""

    path: str
    """Its path in the store."""
    size_bytes: int
    sha256: str
    """Empty for the signature, which no manifest names."""


def find_file(store: ModelStore, model: str, version: str, file: str) -> StoredFile | None:
    """Returns a file of a version; None if it has no such file.

    Raises:
        ModelNotFoundError, VersionNotFoundError: there is no such version.
        StoreError: the store cannot be read.
    """
    number = version_number(store, check_name(model), version)
    manifest = store.manifest(model, number)
    if file == MANIFEST:
        data = store.storage.get(manifest_path(model, number), LARGE.max_bytes)
        return StoredFile(manifest_path(model, number), len(data), hashlib.sha256(data).hexdigest())
    if file == SIGNATURE:
        signature = store.signature(model, number)
        if signature is None:
            return None
        return StoredFile(signature_path(model, number), len(signature), "")
    entry = manifest.file(file)
    if entry is None:
        return None
    return StoredFile(f"{model}/{number}/{entry.file}", entry.size_bytes, entry.sha256)


def wanted_part(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Returns start and end of the part that a Range header names, the end exclusive.

    Args:
        header: the header; empty, or of several ranges or another unit, asks for the whole file,
            as RFC 9110 allows.
        size_bytes: size of the file.

    Returns:
        None if no byte of the file is in the range.
    """
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if found is None:
        return 0, size_bytes
    first, last, suffix = found.groups()
    if suffix is not None:
        start, end = max(0, size_bytes - int(suffix)), size_bytes
    else:
        start = int(first)
        end = min(size_bytes, int(last) + 1) if last else size_bytes
    return (start, end) if start < end else None
