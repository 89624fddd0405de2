"""The files of a version to push: those of a store, or those of a folder."""

from pathlib import Path
from typing import Protocol

from model_store.document import LARGE
from model_store.errors import DigestMismatchError, StorageError
from model_store.manifest import MANIFEST, SIGNATURE, Manifest, parse_manifest
from model_store.storage.plain_file import open_plain_file, read_plain_file
from model_store.store import ModelStore


class VersionSource(Protocol):
    """The files of one version."""

    manifest: Manifest
    sealed: bytes
    """The stored bytes of the manifest."""
    signature: bytes | None

    def read(self, file: str, start: int, size_bytes: int) -> bytes:
        """Reads a part of a file that the manifest names.

        Raises:
            StorageError: it cannot be read.
        """


class StoredVersion:
    """A version in a store.

    Raises:
        StoreError: the store lacks it, or cannot be read.
    """

    def __init__(self, store: ModelStore, model: str, version: int) -> None:
        self._store = store
        self.manifest = store.manifest(model, version)
        self.sealed = store.sealed(self.manifest)
        self.signature = store.signature(model, version)

    def read(self, file: str, start: int, size_bytes: int) -> bytes:
        """Reads a part of a file; see `VersionSource`."""
        path = f"{self.manifest.model}/{self.manifest.version}/{file}"
        return self._store.storage.get_part(path, start, size_bytes)


class VersionFolder:
    """A folder with the files of one version, its manifest among them.

    Raises:
        StorageError: the manifest cannot be read.
        ManifestError: it is invalid.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.sealed = read_plain_file(folder / MANIFEST, LARGE.max_bytes)
            there = (folder / SIGNATURE).exists()
            self.signature = read_plain_file(folder / SIGNATURE, LARGE.max_bytes) if there else None
        except OSError as error:
            raise StorageError(f"cannot read the version in {folder}: {error.strerror}") from error
        self.manifest = parse_manifest(self.sealed, str(folder / MANIFEST))

    def read(self, file: str, start: int, size_bytes: int) -> bytes:
        """Reads a part of a file; see `VersionSource`."""
        try:
            with open_plain_file(self._folder / file) as opened:
                opened.seek(start)
                return opened.read(size_bytes)
        except OSError as error:
            raise StorageError(f"cannot read {self._folder / file}: {error.strerror}") from error


def read_whole(source: VersionSource, file: str, start: int, size_bytes: int) -> bytes:
    """Reads a part of a file, all of it.

    Raises:
        DigestMismatchError: the file is shorter.
        StorageError: it cannot be read.
    """
    data = source.read(file, start, size_bytes)
    if len(data) != size_bytes:
        raise DigestMismatchError(
            f"'{file}' ends at {start + len(data):,} bytes, before the manifest says; verify the "
            "version (flambeau models verify)"
        )
    return data
