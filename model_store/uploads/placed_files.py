"""Files that appear whole at their path: by a hard link, a copy, or in pieces from a bucket."""

import hashlib
import os
import shutil
from pathlib import Path

from model_store.manifest import FileEntry
from model_store.storage.storage import Storage

PIECE_BYTES = 8 * 2**20
"""Bytes of a file in a bucket that are copied at once."""


def link_or_copy(source: Path, target: Path, upload_id: str) -> None:
    """Makes a file appear whole at its path: a hard link, or else a copy."""
    beside = target.with_name(f".{upload_id}")  # no file of a version begins with a dot
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:
        shutil.copyfile(source, beside)
    os.replace(beside, target)
    beside.unlink(missing_ok=True)  # replacing a link by one to the same file does nothing


def copy_in_pieces(
    storage: Storage, path: str, entry: FileEntry, target: Path, upload_id: str
) -> bool:
    """Copies a file from a bucket; returns False if its bytes do not match the entry.

    Raises:
        StorageError: it cannot be read.
        OSError: it cannot be written.
    """
    beside, digest, size = target.with_name(f".{upload_id}"), hashlib.sha256(), 0
    try:
        with beside.open("wb") as file:
            while size < entry.size_bytes:
                data = storage.get_part(path, size, min(PIECE_BYTES, entry.size_bytes - size))
                if not data:
                    return False
                file.write(data)
                digest.update(data)
                size += len(data)
        if digest.hexdigest() != entry.sha256:
            return False
        os.replace(beside, target)
        return True
    finally:
        beside.unlink(missing_ok=True)
