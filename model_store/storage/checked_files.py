"""Files of a version, checked against their entries in the manifest. No file is used otherwise."""

import hashlib
from pathlib import Path

from model_store.errors import ConflictError, DigestMismatchError, StorageError
from model_store.manifest import FileEntry, Manifest
from model_store.storage.plain_file import open_plain_file
from model_store.storage.storage import Storage


def checked(data: bytes, entry: FileEntry, where: str) -> bytes:
    """Returns the bytes if they match the entry.

    Raises:
        DigestMismatchError: size or sha256 differ.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != entry.sha256 or len(data) != entry.size_bytes:
        raise DigestMismatchError(
            f"{where}: sha256 differs from the manifest (expected {entry.sha256[:12]}… and "
            f"{entry.size_bytes} bytes, found {found[:12]}… and {len(data)}); refused"
        )
    return data


def read_drafted(folder: Path, entry: FileEntry) -> bytes:
    """Reads a file of a version that is not published yet.

    Raises:
        StorageError: it cannot be read.
        DigestMismatchError: it does not match the entry.
    """
    try:
        data = (folder / entry.file).read_bytes()
    except OSError as error:
        raise StorageError(
            f"cannot read '{entry.file}', which the draft names, in {folder}: {error.strerror}"
        ) from error
    return checked(data, entry, entry.file)


def digest_of_file(path: Path) -> str:
    """Returns the sha256 of a file of any size.

    Raises:
        OSError: it cannot be read.
    """
    with open_plain_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_all_there(storage: Storage, manifest: Manifest) -> None:
    """Checks that the files of a version are in its store, before its manifest makes it visible.

    They are not if the publisher slept for a day, so that retention took it for killed.

    Raises:
        ConflictError: one is gone.
    """
    folder = f"{manifest.model}/{manifest.version}/"
    there = storage.list(folder)
    for entry in manifest.all_files():
        if there.get(f"{folder}{entry.file}") != entry.size_bytes:
            raise ConflictError(
                f"'{entry.file}' of version {manifest.version} of '{manifest.model}' is gone from "
                f"{storage.url}: what is not published within a day may be removed (flambeau "
                "models prune); publish it again"
            )
