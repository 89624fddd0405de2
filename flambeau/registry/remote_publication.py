"""`python -m flambeau.registry.remote_publication JSON`: the registry's part of `flambeau.publish`.

In: a task. Out: one JSON object a line: `{"step": text}`, then `{"done": {...}}` or
`{"error": text}`, with `"is_unknown": true` if the version may be published.

`prepare` gives an empty store what it needs to number the next version as the registry would;
`push` sends a version of that store, and moves an alias. Both run in a process of our own, since
the caller's project may have packages of our names.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Literal

from flambeau.channel import Tls
from flambeau.protocol.strict import StrictModel
from flambeau.registry.connection import RegistryConnection, path_of
from flambeau.registry.errors import (
    RegistryConflictError,
    RegistryError,
    RegistryUnknownError,
)
from flambeau.registry.push import begin_upload, push_version
from flambeau.registry.sources import StoredVersion
from model_store.document import LARGE
from model_store.errors import StoreError
from model_store.manifest import MANIFEST, parse_manifest
from model_store.store import ModelStore, manifest_path

MAX_SKIPPED = 64
"""Numbers after the newest that may belong to deleted versions."""
LINES_READ = 20
"""Newest versions among which the one is that the next version is compared with: the newest that
is readable and has a semantic version."""
MAX_GOLDEN_BYTES = 64 * 2**20
"""Limit of the golden rows that are fetched, to see if the answers have changed."""
_PROBE = b"{}"


class Task(StrictModel):
    """The work of the process."""

    act: Literal["prepare", "push"]
    url: str
    token_file: str = ""
    ca_file: str = ""
    store: str
    model: str
    version: int = 0
    alias: str | None = None


def main(text: str) -> int:
    """Does a task. Returns the exit code."""
    task = Task.model_validate_json(text)
    try:
        registry = _connection(task)
        try:
            store = ModelStore(task.store)
            done = prepare(registry, store, task.model) if task.act == "prepare" else (
                push(registry, store, task)
            )  # fmt: skip
        finally:
            registry.close()
    except (RegistryError, StoreError, OSError, ValueError) as error:
        hint = ""
        if isinstance(error, RegistryError) and error.status == 401:
            hint = "; give the file of a key with token_file"
        is_unknown = isinstance(error, RegistryUnknownError)
        _tell({"error": f"{error}{hint}", "is_unknown": is_unknown})
        return 1
    _tell({"done": done})
    return 0


def _connection(task: Task) -> RegistryConnection:
    token = Path(task.token_file).read_text("utf-8").strip() if task.token_file else ""
    tls = Tls(ca_file=task.ca_file) if task.ca_file else None
    return RegistryConnection(task.url, token, tls)


def prepare(registry: RegistryConnection, store: ModelStore, model: str) -> dict[str, Any]:
    """Checks that the caller may push, and copies what the next version is compared with.

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
    number = _free_number(registry, model, int(lines[0]["version"]) + 1 if lines else 1)
    if number > 1:
        store.claim(model, number - 1, registry.url)
    before = next((int(line["version"]) for line in lines if line.get("semver")), 0)
    if before:
        _copy_compared(registry, store, model, before)
    return {"number": number}


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


def _free_number(registry: RegistryConnection, model: str, number: int) -> int:
    """Returns the first number from one on that no version has or had.

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
        return free
    raise RegistryError(
        f"numbers {number} to {number + MAX_SKIPPED - 1} of '{model}' are taken at {registry.url}; "
        "publish into a store, and push from there"
    )


def push(registry: RegistryConnection, store: ModelStore, task: Task) -> dict[str, Any]:
    """Pushes a version, and moves the alias of the task.

    Returns:
        `breaks`: what of it breaks callers of production; `moved`: True if the alias moved;
        `note`: why it did not, or that the move waits for a second person.

    Raises:
        RegistryError: it was not pushed.
        StoreError: a file cannot be read.
    """
    source = StoredVersion(store, task.model, task.version)

    def sent(file: str, _: int, done: bool) -> None:
        if done:
            _tell({"step": f"sent {file}"})

    report = push_version(registry, source, sent, "published from Python")
    found: dict[str, Any] = {"breaks": report.breaks, "moved": False, "note": ""}
    if task.alias is None:
        return found
    wanted = {"version": task.version, "why": "published from Python"}
    try:
        path = path_of("models", task.model, "aliases", task.alias)
        moved = registry.call("POST", path, wanted)
    except RegistryError as error:
        return {**found, "error": str(error)}
    if request := moved.get("request"):
        note = f"{task.alias} moves once a second person approves request {request['number']}"
        return {**found, "note": note}
    return {**found, "moved": True}


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


def _tell(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
