"""Deletes a version: its files go, and a tombstone stays.

Order, by which no alias ever names a deleted version: the pointers are read, and no alias may name
the version; the tombstone is created; a new generation of the pointers is created, with the same
aliases. A promotion that read the pointers before fails on that generation, and one that reads them
after it finds the tombstone. Only then is the manifest deleted, and the files after it.

A deletion that resumes one that was cut off creates a generation of its own first: the first one
may still be under way. A promotion that came first takes the deletion back, tombstone and all,
unless another deletion has removed the manifest meanwhile.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from model_store.errors import (
    ConflictError,
    StoreError,
    VersionDeletedError,
    VersionInUseError,
)
from model_store.host.this_user import this_user
from model_store.listing import NewestOfModel, list_models, model_names, newest_of
from model_store.manifest import CLAIM, Manifest, check_name
from model_store.pipelines.graph import parse_part
from model_store.pipelines.parts import MAX_LOOKED_AT
from model_store.pointers import Pointers
from model_store.records.annotations import annotations_path
from model_store.records.tombstone import (
    Tombstone,
    refuse_deleted,
    tombstone_of,
    tombstone_path,
)
from model_store.rollouts.traffic import Traffic
from model_store.store import ModelStore, manifest_path

MAX_TRIES = 16
"""Moves of other processes that may come first."""


def delete_version(
    store: ModelStore, model: str, version: int, who: str = "", why: str = ""
) -> Tombstone:
    """Deletes a version.

    Args:
        store: the store.
        model: the model's name.
        version: the version's number.
        who: who deletes it, for the history; empty for the user of this process.
        why: reason, for the history.

    Raises:
        BadNameError: the model's name is none.
        ModelNotFoundError, VersionNotFoundError: there is no such version.
        VersionDeletedError: it was deleted before.
        VersionInUseError: an alias or a pipeline names it.
        ConflictError: a concurrent promotion named it, and nothing was deleted; or another process
            deletes it; or `MAX_TRIES` other moves came first: delete it again.
        StorageError: the store failed; delete the version again.
    """
    try:
        refuse_deleted(store.storage, check_name(model), version)
    except VersionDeletedError:
        tombstone = tombstone_of(store.storage, model, version)
        left = set(store.storage.list(f"{model}/{version}/"))
        if tombstone is None or left <= {f"{model}/{version}/{CLAIM}"}:
            raise
        _outdate_promotions(store, tombstone)
        _remove_files(store, model, version)  # a deletion was cut off
        _keep_tombstone(store, tombstone)  # the first deletion may have taken it back
        return tombstone
    manifest = store.manifest(model, version)
    sealed = store.sealed(manifest)
    _refuse_named(store.pointers(model), model, version)
    _refuse_part(store, model, version)
    tombstone = Tombstone(
        model=model,
        version=version,
        semver=manifest.semver,
        manifest_sha256=hashlib.sha256(sealed).hexdigest(),
        who=who or this_user(),
        when=datetime.now(UTC),
        why=why,
    )
    store.storage.create(tombstone_path(model, version), tombstone.to_json())
    try:
        _outdate_promotions(store, tombstone)
    except VersionInUseError as error:
        store.storage.delete(tombstone_path(model, version))
        _keep_tombstone(store, tombstone)
        raise ConflictError(f"{error}; a promotion came first, and nothing was deleted") from error
    _remove_files(store, model, version)
    return tombstone


def _outdate_promotions(store: ModelStore, tombstone: Tombstone) -> None:
    """Creates a generation, on which every promotion fails that began before the tombstone.

    Raises:
        VersionInUseError: a promotion came first.
        ConflictError: `MAX_TRIES` other moves came first.
    """
    model, version, why = tombstone.model, tombstone.version, tombstone.why
    reason = f"version {version} deleted" + (f": {why}" if why else "")
    for _ in range(MAX_TRIES):
        current = store.pointers(model)
        _refuse_named(current, model, version)
        with suppress(ConflictError):
            store.following(
                model, current.aliases if current else {}, reason, current, tombstone.who
            )
            return
    raise ConflictError(
        f"other processes moved pointers of '{model}' {MAX_TRIES} times while version {version} "
        "was being deleted; delete it again"
    )


def _keep_tombstone(store: ModelStore, tombstone: Tombstone) -> None:
    """Creates the tombstone again if the manifest has gone: two deletions end in any order."""
    model, version = tombstone.model, tombstone.version
    if manifest_path(model, version) not in store.storage.list(f"{model}/{version}/"):
        with suppress(ConflictError):
            store.storage.create(tombstone_path(model, version), tombstone.to_json())


def _remove_files(store: ModelStore, model: str, version: int) -> None:
    """Removes the files of a version, its manifest first."""
    store.storage.delete(manifest_path(model, version))
    for path in store.storage.list(f"{model}/{version}/"):
        if not path.endswith(f"/{CLAIM}"):  # the number is never used again
            store.storage.delete(path)
    store.storage.delete(annotations_path(model, version))


def _refuse_named(current: Pointers | None, model: str, version: int) -> None:
    """Refuses a version that an alias names, or that a rollout, a shadow or a split needs.

    Also of a version whose deletion was cut off: a promotion may have won over it.

    Raises:
        VersionInUseError: one does.
    """
    aliases = current.aliases if current else {}
    if naming := sorted(alias for alias, named in aliases.items() if named == version):
        raise VersionInUseError(
            f"version {version} of '{model}' is what the alias '{naming[0]}' names; move the "
            "alias to another version first"
        )
    traffic = current.traffic if current else Traffic()
    if use := traffic.use_of(version):
        raise VersionInUseError(
            f"version {version} of '{model}' is {use}, which gets requests; end it first"
        )


def _refuse_part(store: ModelStore, model: str, version: int) -> None:
    """Refuses a version that a pipeline in use names by its number.

    Raises:
        VersionInUseError: one does. The pipelines of the first `MAX_LOOKED_AT` models are read:
            their newest versions, and those that an alias or a rollout names.
    """
    for name, newest in _newest_versions(store):
        for used in _used_versions(store, name, newest):
            names_it = False
            with suppress(StoreError):  # a damaged version uses nothing
                names_it = _names_part(store.manifest(name, used), model, version)
            if names_it:
                raise VersionInUseError(
                    f"version {version} of '{model}' is a part of the pipeline '{name}' {used}; "
                    "publish the pipeline again without it, and move its aliases first"
                )


def _newest_versions(store: ModelStore) -> Iterator[tuple[str, NewestOfModel]]:
    """Yields the first `MAX_LOOKED_AT` models: in a folder, without a listing of all versions."""
    if store.is_local:
        for name in sorted(model_names(store.storage))[:MAX_LOOKED_AT]:
            with suppress(StoreError):  # a damaged model uses nothing
                if (newest := newest_of(store.storage, name)) is not None:
                    yield name, newest
        return
    for name, listing in [*list_models(store.storage).items()][:MAX_LOOKED_AT]:
        if listing.versions:
            generation = max(listing.generations, default=0)
            yield name, NewestOfModel(listing.versions[-1], generation)


def _used_versions(store: ModelStore, name: str, newest: NewestOfModel) -> set[int]:
    """Returns the newest version of a model, and those that its pointers name."""
    used = {newest.version}
    if newest.generation:
        with suppress(StoreError):  # damaged pointers name nothing
            used |= store.pointers_at(name, newest.generation).versions
    return used


def _names_part(manifest: Manifest, model: str, version: int) -> bool:
    texts = manifest.pipeline.graph.models() if manifest.pipeline else ()
    parts = map(parse_part, texts)
    return any((part.model, part.wanted) == (model, version) for part in parts)
