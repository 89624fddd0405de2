"""Publication at a registry: numbers a version as the registry would, and pushes it there.

In: an empty store of this machine. `prepare` gives it what the next version follows, so that a
version which is published in it has the number and the semantic version that the registry would
give. Out: that version at the registry, and an alias moved to it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flambeau.registry.connection import RegistryConnection, path_of
from flambeau.registry.errors import RegistryConflictError, RegistryError, RegistryUnknownError
from flambeau.registry.push import LOST, begin_upload, push_version
from flambeau.registry.sources import StoredVersion
from model_store.document import LARGE
from model_store.manifest import MANIFEST, parse_manifest
from model_store.semver import semver_index
from model_store.store import ModelStore, manifest_path

MAX_SKIPPED = 64
"""Numbers after the newest that may belong to deleted versions."""
LINES_READ = 20
"""Newest versions among which the one is that the next version is compared with: the newest that
is readable and has a semantic version."""
MAX_GOLDEN_BYTES = 64 * 2**20
"""Limit of the golden rows that are fetched, to see if the answers have changed."""
_PROBE = b"{}"


@dataclass(frozen=True, slots=True)
class Publication:
    """The outcome of a push."""

    breaks: str
    """What of the version breaks callers of production; empty for nothing."""
    moved: bool = False
    """True if the alias moved."""
    note: str = ""
    """That the move waits for a second person; empty if it does not."""
    refusal: str = ""
    """That the alias did not move, or may not have, and why; empty if it moved or waits."""


def prepare(registry: RegistryConnection, store: ModelStore, model: str) -> int:
    """Checks that the caller may push, and copies what the next version is compared with.

    Returns:
        The number of the next version.

    Raises:
        RegistryError: there is no answer, or the caller may not push or read.
        StoreError: the store cannot be written to, or a manifest was damaged on the way.
    """
    lines: list[dict[str, Any]] = []
    try:
        page = registry.call("GET", path_of("models", model), query={"limit": f"{LINES_READ}"})
        lines = page["versions"]
    except RegistryError as error:
        if error.status != 404:  # a new model, or one that the caller may not push
            raise
    number, taken = _free_number(registry, model, int(lines[0]["version"]) + 1 if lines else 1)
    if number > 1:
        store.claim(model, number - 1, registry.url)
    before = next((line for line in lines if line.get("semver")), None)
    base = str(before["semver"]) if before else ""
    semver_index.take(store.storage, model, taken, base, number)
    if before:
        _copy_compared(registry, store, model, int(before["version"]))
    return number


def _copy_compared(
    registry: RegistryConnection, store: ModelStore, model: str, version: int
) -> None:
    """Copies manifest and golden rows; without these, answers count as changed."""
    sealed = _fetched(registry, model, version, MANIFEST, LARGE.max_bytes)
    golden = parse_manifest(sealed, f"{MANIFEST} of {registry.url}").golden.file
    if golden.size_bytes <= MAX_GOLDEN_BYTES:
        try:
            data = _fetched(registry, model, version, golden.file, MAX_GOLDEN_BYTES)
        except RegistryError as error:
            if error.status == 0:  # no answer, and none of a registry
                raise
        else:
            store.storage.replace(f"{model}/{version}/{golden.file}", data)
    store.storage.replace(manifest_path(model, version), sealed)


def _free_number(registry: RegistryConnection, model: str, number: int) -> tuple[int, list[str]]:
    """Returns the first number from one on that no version has or had, and the taken semvers.

    An upload is begun with it, and abandoned: so a caller who may not push learns it before the
    model is exported and verified.
    """
    file = {"file": MANIFEST, "size_bytes": len(_PROBE), "sha256": _sha256(_PROBE)}
    for free in range(number, number + MAX_SKIPPED):
        try:
            wanted = {"model": model, "version": free, "files": [file]}
            upload = begin_upload(registry, wanted)
        except RegistryConflictError:  # of a version that was deleted
            continue
        try:
            registry.call("DELETE", path_of("uploads", upload["id"]))
        except RegistryError as error:
            if error.status != 404:  # another publication of the same caller has abandoned it
                raise
        return free, upload.get("taken_semvers", [])[: semver_index.MOST_TAKEN]
    raise RegistryError(
        f"numbers {number} to {number + MAX_SKIPPED - 1} of '{model}' are taken at {registry.url}; "
        "publish into a store, and push from there"
    )


def push(
    registry: RegistryConnection,
    store: ModelStore,
    model: str,
    version: int,
    alias: str | None,
    why: str,
    say: Callable[[str], None],
) -> Publication:
    """Pushes a version, and moves an alias.

    Args:
        registry: connection to the registry.
        store: the store that has the version.
        model: name of the model.
        version: its number.
        alias: the alias that moves; None for none.
        why: reason, for history and audit log.
        say: receives a line for each file.

    Raises:
        RegistryError: it was not pushed.
        StoreError: a file cannot be read.
    """
    source = StoredVersion(store, model, version)

    def sent(file: str, _: int, done: bool) -> None:
        if done:
            say(f"sent {file}")

    report = push_version(registry, source, sent, why)
    if alias is None:
        return Publication(report.breaks)
    try:
        note = move_alias(registry, model, version, alias, why)
    except RegistryError as error:
        return Publication(report.breaks, refusal=str(error))
    return Publication(report.breaks, moved=not note, note=note)


def move_alias(
    registry: RegistryConnection,
    model: str,
    version: int,
    alias: str,
    why: str,
    *,
    first: bool = False,
) -> str:
    """Moves an alias to a version that was just pushed.

    Args:
        registry: connection to the registry.
        model: name of the model.
        version: number of the version.
        alias: the alias.
        why: reason, for the history.
        first: True refuses (409) to move an alias that names another version already.

    Returns:
        That the move waits for a second person; empty if the alias moved.

    Raises:
        RegistryUnknownError: the answer was lost, so the alias may have moved.
        RegistryError: the registry refused to move it.
    """
    path = path_of("models", model, "aliases", alias)
    try:
        document = {"version": version, "why": why, **({"first": True} if first else {})}
        moved = registry.call("POST", path, document)
    except RegistryError as error:
        if error.status in LOST:
            raise RegistryUnknownError(
                f"it is not known whether {alias} moved to it: {error}; look at `flambeau models "
                f"history {model} --server {registry.url}`",
                error.status,
            ) from error
        raise RegistryError(f"{alias} was not moved to it: {error}", error.status) from error
    if request := moved.get("request"):
        return f"{alias} moves once a second person approves request {request['number']}"
    return ""


def _fetched(
    registry: RegistryConnection, model: str, version: int, file: str, max_bytes: int
) -> bytes:
    found = bytearray()

    def take(piece: bytes) -> None:
        found.extend(piece)
        if len(found) > max_bytes:
            raise RegistryError(f"{file} has more than {max_bytes:,} bytes")

    registry.get_part(path_of("models", model, "versions", version, "files", file), 0, take)
    return bytes(found)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
