"""Pulls a version from a registry into a store: an upload of its own, filled by downloads.

Rules: as for uploads, the size of a file on disk is the truth, so the same pull goes on after a
broken connection, or after the end of this process; every digest is checked before the version is
visible; the signature is stored unchanged, and verified when the version is loaded.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flambeau.protocol.strict import nearest_name
from flambeau.registry.connection import FIRST_WAIT_S, TRIES, RegistryConnection, path_of
from flambeau.registry.errors import RegistryAwayError, RegistryError
from flambeau.registry.push import PushReport, Sent
from model_store.document import LARGE
from model_store.manifest import MANIFEST, SIGNATURE, Manifest, parse_manifest
from model_store.pointers import PRODUCTION
from model_store.signatures.signing import MAX_SIGNATURE_BYTES
from model_store.store import ModelStore
from model_store.uploads.declaration import Declaration, DeclaredFile
from model_store.uploads.shares import MAX_OPEN
from model_store.uploads.uploads import Uploads, UploadState

NAMES_READ = 100
"""Names of the registry among which the nearest one to an unknown name is."""


def wanted_version(connection: RegistryConnection, model: str, wanted: str) -> int:
    """Returns the number of a version in a registry.

    Args:
        connection: connection to the registry.
        model: name of the model.
        wanted: a number, an alias or a range of semantic versions; empty for the version in
            production, or else the newest.

    Raises:
        RegistryError: there is none.
    """
    with _named(connection, model):
        if wanted:
            found = connection.call("GET", path_of("models", model, "versions", wanted))
            return int(found["version"])
        found = connection.call("GET", path_of("models", model))
    return int(found["aliases"].get(PRODUCTION, found["versions"][0]["version"]))


@contextmanager
def _named(connection: RegistryConnection, model: str) -> Iterator[None]:
    """Names the model in the answer of the block that there is none of this name, and the nearest.

    Raises:
        RegistryError: the block raised it.
    """
    try:
        yield
    except RegistryError as error:
        if error.status != 404 or f"'{model}'" in str(error):
            raise
        message = f"model '{model}': {error}{_nearest(connection, model)}"
        raise RegistryError(message, error.status) from error


def _nearest(connection: RegistryConnection, model: str) -> str:
    """Returns a hint with the nearest name that the caller sees; empty for none."""
    try:
        found = connection.call("GET", "models", query={"limit": str(NAMES_READ)})
        hint = nearest_name(model, [str(one["name"]) for one in found["models"]])
    except (RegistryError, KeyError, TypeError):
        return ""
    return hint if "did you mean" in hint else ""


class Pull:
    """A version to pull: its manifest, and how much of it is here.

    Args:
        connection: connection to the registry.
        model: name of the model.
        version: its number.

    Raises:
        RegistryError: the registry has no such version.
        ManifestError: its manifest is invalid, or that of another version.
    """

    def __init__(self, connection: RegistryConnection, model: str, version: int) -> None:
        self._connection = connection
        self._path = ("models", model, "versions", version, "files")
        with _named(connection, model):
            self._sealed = self._small(MANIFEST, LARGE.max_bytes)
        self.manifest: Manifest = parse_manifest(self._sealed, f"{MANIFEST} of {connection.url}")
        self._signature: bytes | None = None
        try:
            self._signature = self._small(SIGNATURE, MAX_SIGNATURE_BYTES)
        except RegistryError as error:
            if error.status != 404:
                raise
        named = {e.file: (e.size_bytes, e.sha256) for e in self.manifest.all_files()}
        files = [
            *(DeclaredFile(file=f, size_bytes=s, sha256=d) for f, (s, d) in named.items()),
            *(
                DeclaredFile(file=f, size_bytes=len(d), sha256=hashlib.sha256(d).hexdigest())
                for f, d in self._given().items()
            ),
        ]
        self._declaration = Declaration(model=model, version=version, files=tuple(files))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self._declaration.size_bytes

    def into(self, store: ModelStore, folder: Path, sent: Sent) -> PushReport:
        """Downloads what is missing, checks it, and publishes the version in a store.

        Args:
            store: the store.
            folder: folder for the files until they are complete.
            sent: hears of the progress.

        Raises:
            ConflictError: the store has another version under this number, or had it.
            DigestMismatchError: a file arrived with other bytes; pull again.
            RegistryError: the registry does not answer; pull again to go on.
            StoreError: the store or the folder failed.
        """
        uploads = Uploads(store, folder, lambda *_: None, max_per_owner=MAX_OPEN)
        state = uploads.begin(self._declaration, "")
        for file, size in state.received.items():
            one = self._declaration.file(file)
            sent(file, size, one is not None and size == one.size_bytes)
        files = bytes_received = 0
        if not state.is_published:
            for one in self._declaration.files:
                missing = one.size_bytes - state.received[one.file]
                if missing:
                    self._fetch(uploads, state, one, sent)
                    files, bytes_received = files + 1, bytes_received + missing
            uploads.finish(state.id, "")
        manifest, total = self.manifest, len(self._declaration.files)
        return PushReport(manifest.model, manifest.version, files, total - files, bytes_received)

    def _fetch(self, uploads: Uploads, state: UploadState, one: DeclaredFile, sent: Sent) -> None:
        at = state.received[one.file]

        def take(piece: bytes) -> None:
            nonlocal at
            at = uploads.append(state.id, "", one.file, at, piece)
            sent(one.file, len(piece), at == one.size_bytes)

        if (given := self._given().get(one.file)) is not None:
            take(given[at:])
            return
        failures = 0
        while at < one.size_bytes:
            before = at
            try:
                self._connection.get_part(path_of(*self._path, one.file), at, take)
            except RegistryAwayError:
                failures = 0 if at > before else failures + 1
                if failures == TRIES:
                    raise
                self._connection.pause(FIRST_WAIT_S * 2**failures)

    def _given(self) -> dict[str, bytes]:
        """Returns the files that were read first."""
        signature = {} if self._signature is None else {SIGNATURE: self._signature}
        return {MANIFEST: self._sealed, **signature}

    def _small(self, file: str, max_bytes: int) -> bytes:
        found: list[bytes] = []

        def take(piece: bytes) -> None:
            found.append(piece)
            if sum(map(len, found)) > max_bytes:
                raise RegistryError(f"{file} has more than {max_bytes:,} bytes")

        self._connection.get_part(path_of(*self._path, file), 0, take)
        return b"".join(found)
