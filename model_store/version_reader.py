"""Readers of published versions, as far as other files of the store need one.

`ModelStore` is one; it imports those files, so they cannot import it.
"""

from typing import Protocol

from model_store.manifest import FileEntry, Manifest
from model_store.storage.storage import Storage


class VersionReader(Protocol):
    """Reads published versions, as `ModelStore` does."""

    @property
    def storage(self) -> Storage:
        """The place of the versions."""

    def manifest(self, model: str, version: int) -> Manifest:
        """Reads the manifest of a version."""

    def read_file(
        self, manifest: Manifest, entry: FileEntry, max_bytes: int | None = None
    ) -> bytes:
        """Reads a file of a version, and checks its digest."""
