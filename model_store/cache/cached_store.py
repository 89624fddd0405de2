"""A bucket whose files, documents and last listing are kept on the disk of this machine.

In: the URL of a bucket, and a folder. Out: a `ModelStore` that reads files from the folder where
it has them, and everything from there while the store is away.

Rules: a document is asked of the store first, so that a deleted version is gone at once; only
while the store fails is the last read copy used. Manifests, signatures and generations never
change, and what is checked of them does not depend on where they were read. Writes go to the store.
"""

import hashlib
import logging
from pathlib import Path

from model_store.cache.file_cache import Count, FileCache
from model_store.cache.known_documents import KnownDocuments
from model_store.cache.private_folder import PrivateFolder
from model_store.errors import StorageError, TooLargeError
from model_store.listing import ModelListing
from model_store.manifest import FileEntry, Manifest
from model_store.storage.storage import MissingFileError, Storage
from model_store.store import ModelStore

logger = logging.getLogger("flambeau.store")


class CachedStore(ModelStore):
    """A store in a bucket, with a cache in a folder; errors of the folder only cost the cache.

    Args:
        url: URL of the bucket.
        folder: folder of the cache, which several processes and stores may share.
        max_bytes: limit of the files in it together.
        count: callback after every read of a file; called from any thread.

    Raises:
        StorageError: as `Storage`.
    """

    def __init__(self, url: str, folder: Path, max_bytes: int, count: Count) -> None:
        place = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:32]
        self._known = KnownDocuments(PrivateFolder(folder / "stores" / place))
        self._files = FileCache(PrivateFolder(folder / "files"), max_bytes, count)
        self._documents = _DocumentStorage(url, self._known)
        self.storage = self._documents

    @property
    def is_away(self) -> bool:
        """True while everything is read from the cache: after `last_listing`, until `follow`."""
        return self._documents.is_away

    def follow(self) -> None:
        """Reads from the store again."""
        self._documents.is_away = False

    def listing(self, model: str | None = None) -> dict[str, ModelListing]:
        """Lists the store, and keeps a whole listing; see `ModelStore.listing`."""
        if model is not None and self.is_away:
            known = self.last_listing() or {}
            return {model: known[model]} if model in known else {}
        found = super().listing(model)
        if model is None:
            try:
                self._known.remember_listing(found)
            except OSError as error:
                self._documents.tell(error)
        return found

    def last_listing(self) -> dict[str, ModelListing] | None:
        """Returns the last known listing, and reads from the cache alone until `follow`.

        None if nothing is known of the store.
        """
        try:
            found = self._known.recall_listing()
        except OSError as error:
            self._documents.tell(error)
            return None
        if found:
            self._documents.is_away = True
        return found or None

    def listed_s(self) -> float:
        """Returns the Unix time at which the store was last listed; 0 if that is unknown."""
        try:
            return self._known.listed_s()
        except OSError:
            return 0.0

    def read_file(
        self, manifest: Manifest, entry: FileEntry, max_bytes: int | None = None
    ) -> bytes:
        """Reads one file from the cache, or else from the store; see `ModelStore.read_file`."""
        if max_bytes is None or entry.size_bytes <= max_bytes:
            data = self._files.get(entry)
            if data is not None:
                return data
        data = super().read_file(manifest, entry, max_bytes)
        self._files.put(entry, data)
        return data


class _DocumentStorage(Storage):
    """Files of a bucket; keeps the documents that are read, and recalls them while it fails."""

    def __init__(self, url: str, known: KnownDocuments) -> None:
        super().__init__(url)
        self._known = known
        self.is_away = False
        self._is_told = False

    def get(self, path: str, max_bytes: int) -> bytes:
        """Reads a whole file; see `Storage.get`."""
        if self.is_away:
            known = self._recall(path, max_bytes)
            if known is None:
                raise StorageError(
                    f"cannot read '{path}' in {self.url}: the store is away, and the cache does "
                    "not have it; it is tried again once the store answers"
                )
            return known
        try:
            data = super().get(path, max_bytes)
        except MissingFileError:
            self._forget(path)
            raise
        except TooLargeError:
            raise
        except StorageError:
            known = self._recall(path, max_bytes)
            if known is None:
                raise
            return known
        try:
            self._known.remember(path, data)
        except OSError as error:
            self.tell(error)
        return data

    def _forget(self, path: str) -> None:
        try:
            self._known.forget(path)
        except OSError as error:
            self.tell(error)

    def _recall(self, path: str, max_bytes: int) -> bytes | None:
        try:
            return self._known.recall(path, max_bytes)
        except OSError as error:
            self.tell(error)
            return None

    def tell(self, error: OSError) -> None:
        """Logs, only once, that the cache cannot be used."""
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "the cache of the store's documents cannot be used; a start needs the store",
                extra={"reason": str(error)},
            )
