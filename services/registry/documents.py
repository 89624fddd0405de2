"""The documents of the registry's answers. Every function here reads the store, and blocks.

In: a store and names. Out: plain values, and `Json` for the parts that are JSON already:
these are not parsed, whose numbers may have thousands of digits.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from model_store.document import LARGE, check_size
from model_store.errors import ModelNotFoundError, StoreError
from model_store.listing import ModelListing, model_names, newest_of
from model_store.manifest import Manifest, check_name
from model_store.pointers import Pointers
from model_store.records.annotations import annotations_of
from model_store.records.moves import moves_page
from model_store.store import ModelStore
from model_store.uploads.uploads import UploadState
from services.registry.encoding import Json

REPORT = "report.json"


def models_page(
    store: ModelStore, sees: Callable[[str], bool], after: str, limit: int
) -> dict[str, Any]:
    """Lists models by name.

    Args:
        store: the store.
        sees: tells if the caller sees a model.
        after: the name before the first; empty for the first page.
        limit: number of models.

    Returns:
        `models`, and `next`: the `after` of the next page, or null.

    Raises:
        StoreGoneError: the store's folder is gone.
        StorageError: the store cannot be listed.
    """
    found = model_names(store.storage)
    if not found:
        store.storage.check_there()
    names = [name for name in found if name > after and sees(name)]
    shown: list[dict[str, Any]] = []
    last = None
    for name in sorted(names):
        if len(shown) == limit:
            last = shown[-1]["name"]
            break
        if (line := _model_line(store, name)) is not None:
            shown.append(line)
    return {"models": shown, "next": last}


def _model_line(store: ModelStore, name: str) -> dict[str, Any] | None:
    """Describes a model in the list; None if it has no version."""
    line: dict[str, Any] = {"name": name}
    try:
        newest = newest_of(store.storage, name)
        if newest is None:
            return None
        line["newest"] = newest.version
        pointers = store.pointers_at(name, newest.generation) if newest.generation else None
    except StoreError as error:  # a damaged model hides no other
        return {**line, "error": str(error)}
    return {**line, "aliases": dict(pointers.aliases) if pointers else {}}


def _pointers(store: ModelStore, name: str, listing: ModelListing) -> Pointers | None:
    return store.pointers_at(name, listing.generations[-1]) if listing.generations else None


def model_document(store: ModelStore, model: str, before: int | None, limit: int) -> dict[str, Any]:
    """Describes a model and a page of its versions, the newest first.

    Args:
        store: the store.
        model: the model's name.
        before: the version before which the page begins; None for the newest.
        limit: number of versions.

    Raises:
        ModelNotFoundError: it has no version.
        StoreError: the store cannot be read.
    """
    listing = store.listing(check_name(model)).get(model, ModelListing())
    if not listing.versions:
        raise ModelNotFoundError(f"model '{model}' is not in the registry")
    pointers = _pointers(store, model, listing)
    aliases = dict(pointers.aliases) if pointers else {}
    wanted = [one for one in reversed(listing.versions) if before is None or one < before]
    return {
        "name": model,
        **_annotations(store, model, None),
        "aliases": aliases,
        "generation": pointers.generation if pointers else 0,
        "versions": [_version_line(store, model, one, aliases) for one in wanted[:limit]],
        "next": wanted[limit - 1] if len(wanted) > limit else None,
    }


def _version_line(
    store: ModelStore, model: str, version: int, aliases: dict[str, int]
) -> dict[str, Any]:
    line: dict[str, Any] = {"version": version, "aliases": _naming(aliases, version)}
    try:
        manifest = store.manifest(model, version)
    except StoreError as error:  # a damaged version hides no other
        return {**line, "error": str(error)}
    return {
        **line,
        "semver": manifest.semver,
        "created_at": manifest.created_at.isoformat(),
        "size_bytes": sum(entry.size_bytes for entry in manifest.all_files()),
        **_annotations(store, model, version),
    }


def version_number(store: ModelStore, model: str, text: str) -> int:
    """Returns the version that a number or an alias names.

    Raises:
        ModelNotFoundError, VersionNotFoundError: there is none.
    """
    from model_store.version_address import find_version

    if text.isdecimal() and text.isascii() and 0 < len(text) < 10:
        return int(text)
    return find_version(store, f"{check_name(model)}@{text[:128]}").version


def version_document(store: ModelStore, model: str, version: int) -> dict[str, Any]:
    """Describes a version: its manifest, its report, its aliases and annotations.

    Raises:
        ModelNotFoundError, VersionNotFoundError: there is none.
        StoreError: the store cannot be read.
    """
    manifest = store.manifest(model, version)
    newest = newest_of(store.storage, model)
    generation = newest.generation if newest else 0
    pointers = store.pointers_at(model, generation) if generation else None
    return {
        "model": model,
        "version": version,
        **_annotations(store, model, version),
        "aliases": _naming(dict(pointers.aliases) if pointers else {}, version),
        "is_signed": store.signature(model, version) is not None,
        "manifest": Json(manifest.model_dump_json().encode()),
        "report": _report(store, manifest),
    }


def _report(store: ModelStore, manifest: Manifest) -> Json | None:
    """Returns the report; None if there is none, or it cannot be read."""
    entry = manifest.file(REPORT)
    if entry is None:
        return None
    with suppress(StoreError, orjson.JSONDecodeError):
        data = store.read_file(manifest, entry, LARGE.max_bytes)
        check_size(data, REPORT, LARGE)
        orjson.loads(data)
        return Json(data)
    return None


def history_document(
    store: ModelStore, model: str, before: int | None, limit: int
) -> dict[str, Any]:
    """Describes a page of the moves of a model's aliases, the newest first.

    Args:
        store: the store.
        model: the model's name.
        before: the generation before which the page begins; None for the newest.
        limit: number of moves.

    Raises:
        ModelNotFoundError: it has no version.
        StoreError: the store cannot be read.
    """
    page = moves_page(store, model, limit, before)
    return {
        "name": model,
        "moves": [move.document() for move in page.moves],
        "next": page.next,
    }


def upload_document(state: UploadState) -> dict[str, Any]:
    """Describes the state of an upload."""
    declaration = state.declaration
    linked = frozenset(state.linked)
    return {
        "id": state.id,
        "model": declaration.model,
        "version": declaration.version,
        "is_published": state.is_published,
        "files": [
            {
                "file": one.file,
                "size_bytes": one.size_bytes,
                "received": state.received[one.file],
                "is_linked": one.file in linked,
            }
            for one in declaration.files
        ],
        "taken_semvers": [*state.taken_semvers],
    }


def open_upload_document(state: UploadState) -> dict[str, Any]:
    """Describes an upload in a list."""
    declaration = state.declaration
    return {
        "id": state.id,
        "model": declaration.model,
        "version": declaration.version,
        "size_bytes": declaration.size_bytes,
        "received": sum(state.received.values()),
        "begun_at": None if state.begun_at is None else state.begun_at.isoformat(),
    }


def _naming(aliases: dict[str, int], version: int) -> list[str]:
    return sorted(alias for alias, named in aliases.items() if named == version)


def _annotations(store: ModelStore, model: str, version: int | None) -> dict[str, Any]:
    try:
        noted = annotations_of(store.storage, model, version)
    except StoreError as error:  # damaged ones hide nothing else
        return {"description": "", "tags": {}, "error": str(error)}
    return {"description": noted.description, "tags": dict(noted.tags)}
