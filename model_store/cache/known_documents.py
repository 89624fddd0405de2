"""The last listing of a bucket, and the documents of the versions that this machine serves.

    <folder>/listing                      versions and pointer generations of all models
    <folder>/digits%2F3%2Fmanifest.json   a document, by its path in the store

In: documents, as they are read from the store. Out: the same bytes, while the store is away.

Rules: a document carries the sha256 of its path and bytes, and one that does not match is removed;
a document of a version or generation that a later listing lacks is removed, so that a version
known to be deleted is never served from here.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated
from urllib.parse import quote, unquote

from pydantic import Field

from flambeau.protocol.names import is_name
from flambeau.protocol.strict import StrictModel
from model_store.cache.private_folder import PrivateFolder
from model_store.document import LARGE, DocumentLimits, parse_as
from model_store.errors import DocumentError
from model_store.listing import ModelListing
from model_store.manifest import MANIFEST, SIGNATURE

MAX_DOCUMENTS_BYTES = 256 * 2**20
"""Size of all documents together, above which no more are kept: those of some 50,000 versions."""
LISTING = DocumentLimits(64 * 2**20, 4_000_000)
"""Limits of a listing: a million versions, with their claims and generations."""
SEEN_EVERY_S = 10
"""Seconds after which the time of the last contact with the store is written again."""
_LISTING = "listing"
_MAX_NAME = 250
"""Characters of a file's name, of which file systems take 255."""
_DIGEST_BYTES = 64
_VERSION_FILE = re.compile(rf"([^/]+)/([1-9][0-9]{{0,8}})/({re.escape(MANIFEST)}|{SIGNATURE})")
_POINTER_FILE = re.compile(r"([^/]+)/pointers/([0-9]{8})\.json")

Numbers = tuple[Annotated[int, Field(ge=1, le=999_999_999)], ...]


class _Listed(StrictModel):
    versions: Numbers = ()
    claimed: Numbers = ()
    generations: Numbers = ()
    unreadable: str = ""


class _Listing(StrictModel):
    models: dict[str, _Listed]


class KnownDocuments:
    """Documents of one store, in a folder that several processes may share.

    Args:
        folder: folder of the documents of this store alone.
    """

    def __init__(self, folder: PrivateFolder) -> None:
        self._folder = folder
        self._listing: Mapping[str, ModelListing] | None = None
        self._seen_s = 0.0
        self._bytes: int | None = None

    def remember(self, path: str, data: bytes) -> None:
        """Keeps a document of a version: a manifest, a signature, or a generation of pointers.

        Raises:
            OSError: it cannot be written.
        """
        name = quote(path, safe="")
        if not _is_kept(path) or len(name) > _MAX_NAME:
            return
        if self._bytes is None:
            self._bytes = sum(file.size_bytes for file in self._folder.files())
        if self._bytes + len(data) > MAX_DOCUMENTS_BYTES or self.recall(path) == data:
            return
        self._folder.write(name, _sealed(path, data))
        self._bytes += len(data)

    def recall(self, path: str, max_bytes: int = LARGE.max_bytes) -> bytes | None:
        """Returns a document as it was last read; None if it is not known, or damaged.

        Raises:
            OSError: the folder cannot be read.
        """
        name = quote(path, safe="")
        if not _is_kept(path) or len(name) > _MAX_NAME:
            return None
        sealed = self._folder.read(name, max_bytes + _DIGEST_BYTES)
        if sealed is None:
            return None
        data = sealed[_DIGEST_BYTES:]
        if _sealed(path, data) != sealed:
            self._folder.remove(name)
            return None
        return data

    def forget(self, path: str) -> None:
        """Removes a document that the store does not have.

        Raises:
            OSError: the folder cannot be used.
        """
        if _is_kept(path):
            self._folder.remove(quote(path, safe=""))

    def remember_listing(self, models: Mapping[str, ModelListing]) -> None:
        """Keeps the listing of the store, and removes documents of what it lacks.

        Raises:
            OSError: it cannot be written.
        """
        now_s = time.monotonic()
        if models == self._listing:
            if now_s - self._seen_s >= SEEN_EVERY_S:
                self._folder.mark(_LISTING)
                self._seen_s = now_s
            return
        listed = {name: _Listed(**asdict(one)) for name, one in models.items()}
        data = _Listing(models=listed).model_dump_json().encode()
        if len(data) > LISTING.max_bytes:
            return
        self._folder.write(_LISTING, _sealed(_LISTING, data))
        self._listing, self._seen_s = models, now_s
        self._forget_others(models)

    def recall_listing(self) -> dict[str, ModelListing] | None:
        """Returns the last listing; None if there is none, or it is damaged.

        Raises:
            OSError: the folder cannot be read.
        """
        sealed = self._folder.read(_LISTING, LISTING.max_bytes + _DIGEST_BYTES)
        if sealed is None or _sealed(_LISTING, sealed[_DIGEST_BYTES:]) != sealed:
            return None
        try:
            found = parse_as(_Listing, sealed[_DIGEST_BYTES:], _LISTING, LISTING)
        except DocumentError:
            return None
        return {
            name: ModelListing(one.versions, one.claimed, one.generations, one.unreadable)
            for name, one in found.models.items()
            if is_name(name)
        }

    def listed_s(self) -> float:
        """Returns the Unix time at which the store was last listed; 0 if that is unknown.

        Raises:
            OSError: the folder cannot be read.
        """
        return (self._folder.used_ns(_LISTING) or 0) / 10**9

    def _forget_others(self, models: Mapping[str, ModelListing]) -> None:
        for file in self._folder.files():
            if file.name != _LISTING and not _is_listed(unquote(file.name), models):
                self._folder.remove(file.name)
        self._bytes = None


def _is_kept(path: str) -> bool:
    return bool(_VERSION_FILE.fullmatch(path) or _POINTER_FILE.fullmatch(path))


def _is_listed(path: str, models: Mapping[str, ModelListing]) -> bool:
    if found := _VERSION_FILE.fullmatch(path):
        return int(found[2]) in models.get(found[1], ModelListing()).versions
    if found := _POINTER_FILE.fullmatch(path):
        return int(found[2]) in models.get(found[1], ModelListing()).generations
    return False


def _sealed(path: str, data: bytes) -> bytes:
    """Returns a document after the sha256 of its path and bytes."""
    return hashlib.sha256(path.encode() + b"\n" + data).hexdigest().encode() + data
