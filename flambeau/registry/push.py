"""Pushes a version to a registry: declares its files, sends those that are missing, finishes.

Rules: the registry says how many bytes of each file it has, so the same push goes on after a broken
connection, or after the end of this process; files that the registry has by digest are not sent;
if the answer to `finish` is lost, the registry is asked whether it has the version.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flambeau.registry.connection import FINISH_TIMEOUT_S, RegistryConnection, path_of
from flambeau.registry.errors import (
    RegistryConflictError,
    RegistryError,
    RegistryUnknownError,
)
from flambeau.registry.sources import VersionSource, read_whole
from model_store.manifest import MANIFEST, SIGNATURE

CHUNK_BYTES = 8 * 2**20
"""Bytes of one call: the registry's limit."""
MAX_RESTARTS = 5
"""Times that a push asks for the state anew because the registry had other bytes than expected."""
LOST = (0, 500, 502, 503, 504)
"""Statuses of `finish`, some by a proxy, after which the version may be published; 0: no answer."""

Sent = Callable[[str, int, bool], None]
"""Hears of bytes that the registry has: file, their number, and True once the file is complete."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """Statistics of one push."""

    model: str
    version: int
    files_copied: int
    files_skipped: int
    """Files that the registry had, from an earlier push or in another version."""
    bytes_copied: int
    breaks: str = ""
    """What of it breaks callers of the registry's production version; empty if nothing does."""


def push_version(
    connection: RegistryConnection, source: VersionSource, sent: Sent, why: str = ""
) -> PushReport:
    """Pushes a version under its own number.

    Args:
        connection: connection to the registry.
        source: the version's files.
        sent: hears of the progress.
        why: reason, for the audit log.

    Raises:
        RegistryConflictError: another version has this number there, or it was deleted.
        RegistryUnknownError: it is not known whether the version is published.
        RegistryError: the registry refused it; the same push can be tried again.
        StoreError: a file cannot be read here, or differs from the manifest.
    """
    files = _files(source)
    manifest = source.manifest
    declaration = {
        "model": manifest.model,
        "version": manifest.version,
        "files": [
            {"file": file, "size_bytes": size, "sha256": sha256}
            for file, (size, sha256) in files.items()
        ],
    }
    state = begin_upload(connection, declaration)
    whole = {one["file"] for one in state["files"] if one["received"] == one["size_bytes"]}
    for one in state["files"]:
        sent(one["file"], one["received"], one["file"] in whole)
    sending = _Sending(connection, source, sent)
    restarts = 0
    breaks = refused = ""
    while not state["is_published"]:
        finishing = False
        try:
            for one in state["files"]:
                sending.send(state["id"], one)
            finishing = True
            finish = path_of("uploads", state["id"], "finish")
            done = connection.call("POST", finish, {"why": why}, timeout_s=FINISH_TIMEOUT_S)
            breaks = str(done.get("breaks", ""))
            break
        except RegistryError as error:  # 404: its answer was lost, and it is over
            restarts += 1
            is_lost = finishing and error.status in LOST
            if finishing and error.status == 404 and str(error) == refused:
                raise  # a model of the pipeline that the caller may not read, and not the upload
            refused = str(error) if finishing else ""
            if not is_lost and (error.status not in (404, 409) or restarts > MAX_RESTARTS):
                _give_up(connection, state["id"], error)
                raise
            state = _begun_again(connection, declaration, state["id"], error, is_lost=is_lost)
    skipped = len(files) - len(sending.files)
    return PushReport(
        manifest.model, manifest.version, len(sending.files), skipped, sending.bytes_sent, breaks
    )


def begin_upload(connection: RegistryConnection, declaration: dict[str, Any]) -> Any:
    """Begins an upload, or returns the state of the same one.

    Raises:
        RegistryError: the registry refused it. Its answer to a key without a grant is that for a
            model that it does not have, so the message names both reasons.
    """
    try:
        return connection.call("POST", "uploads", declaration)
    except RegistryError as error:
        model = str(declaration["model"])
        if error.status != 404 or f"'{model}'" not in str(error):
            raise
        raise RegistryError(
            f"{error}, or this key has no grant on it; ask for push:{model}", error.status
        ) from error


def _begun_again(
    connection: RegistryConnection,
    declaration: dict[str, Any],
    upload_id: str,
    error: RegistryError,
    *,
    is_lost: bool,
) -> Any:
    """Returns the state of the same upload after an error.

    Raises:
        RegistryUnknownError: the answer to `finish` was lost, and this call failed, too.
        RegistryError: this call failed; or the answer was lost, and the version is not published.
    """
    try:
        state = begin_upload(connection, declaration)
    except RegistryError as again:
        _give_up(connection, upload_id, again)
        if is_lost and not isinstance(again, RegistryConflictError):
            raise RegistryUnknownError(
                f"it is not known whether {declaration['model']} {declaration['version']} is "
                f"published at {connection.url}: {error}; look there, or push the same version "
                f"again ({again})",
                error.status,
            ) from again
        raise
    if is_lost and not state["is_published"]:
        raise error
    return state


def _give_up(connection: RegistryConnection, upload_id: str, error: RegistryError) -> None:
    """Abandons an upload that conflicts with the store: it would keep its place and disk."""
    if isinstance(error, RegistryConflictError):
        with suppress(RegistryError):
            connection.call("DELETE", path_of("uploads", upload_id))


class _Sending:
    """Sends what is missing of the files of one upload."""

    def __init__(self, connection: RegistryConnection, source: VersionSource, sent: Sent) -> None:
        self._connection, self._source, self._sent = connection, source, sent
        self.files: set[str] = set()
        self.bytes_sent = 0

    def send(self, upload_id: str, one: dict[str, Any]) -> None:
        file, size, at = one["file"], one["size_bytes"], one["received"]
        path = path_of("uploads", upload_id, "files", file)
        while at < size:
            data = self._part(file, at, min(CHUNK_BYTES, size - at))
            self._connection.call("PUT", path, body=data, query={"offset": str(at)})
            at += len(data)
            self.files.add(file)
            self.bytes_sent += len(data)
            self._sent(file, len(data), at == size)

    def _part(self, file: str, start: int, size_bytes: int) -> bytes:
        if file == MANIFEST:
            return self._source.sealed[start : start + size_bytes]
        if file == SIGNATURE:
            return (self._source.signature or b"")[start : start + size_bytes]
        return read_whole(self._source, file, start, size_bytes)


def _files(source: VersionSource) -> dict[str, tuple[int, str]]:
    """Returns size and sha256 of every file, by name, the manifest last."""
    found = {e.file: (e.size_bytes, e.sha256) for e in source.manifest.all_files()}
    if source.signature is not None:
        found[SIGNATURE] = _described(source.signature)
    found[MANIFEST] = _described(source.sealed)
    return found


def _described(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()
