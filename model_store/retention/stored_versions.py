"""Reads what retention needs to know of a store: its versions, and what names them.

In: a store. Out: `VersionFacts` and the aliases of each model.

Rules: manifests and pointers never change, so each is read once; a store that cannot be read ends
the reading, as unknown versions may use others; a damaged version or damaged pointers keep what
they may name; a rollback restores the version that an alias named before, which is kept therefore.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from model_store.errors import (
    DocumentError,
    ManifestError,
    ManifestFromFutureError,
    ModelNotFoundError,
    StorageError,
    VersionNotFoundError,
)
from model_store.listing import ModelListing
from model_store.pipelines.graph import parse_part
from model_store.pointers import Pointers, PreviousTargets, previous_targets
from model_store.records.moves import zoned
from model_store.retention.rules import VersionFacts, VersionKey
from model_store.store import ModelStore

_TOMBSTONE = re.compile(r"[0-9]{8}\.json")


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """The versions of a store at one moment."""

    versions: tuple[VersionFacts, ...]
    """By model and number."""
    uses: dict[VersionKey, list[str]]
    """What of the store names a version."""


class VersionsReader:
    """Reads the versions of a store, again and again.

    Args:
        store: the store.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._known: dict[VersionKey, VersionFacts] = {}
        self._previous: dict[str, PreviousTargets] = {}
        """Newest generation by model, and the previous version of each alias."""

    def read(self) -> StoredVersions:
        """Lists the store, and reads the manifests of versions that are new to it.

        Raises:
            StorageError: the store, or a model in it, cannot be read.
            ManifestFromFutureError: a newer flambeau wrote a version, which may be a pipeline.
        """
        versions: list[VersionFacts] = []
        uses: dict[VersionKey, list[str]] = {}
        for model, listing in self._store.listing().items():
            if listing.unreadable:
                raise StorageError(listing.unreadable)
            deleted = deleted_numbers(self._store, model)
            for number in listing.versions:
                facts = self._facts(model, number)
                if facts is not None:
                    versions.append(replace(facts, is_cut_off=number in deleted))
            for key, reason in self._named(model, listing):
                uses.setdefault(key, []).append(reason)
        return StoredVersions(tuple(versions), uses)

    def _facts(self, model: str, number: int) -> VersionFacts | None:
        """Returns the facts of a version; None if it was deleted meanwhile."""
        if (model, number) not in self._known:
            try:
                manifest = self._store.manifest(model, number)
            except ManifestFromFutureError:
                raise
            except ManifestError:
                return VersionFacts(model=model, version=number)
            except (ModelNotFoundError, VersionNotFoundError):
                return None
            texts = manifest.pipeline.graph.models() if manifest.pipeline else ()
            self._known[model, number] = VersionFacts(
                model=model,
                version=number,
                created_at=zoned(manifest.created_at),
                semver=manifest.semver or "",
                parts=tuple(parse_part(text) for text in sorted(set(texts))),
            )
        return self._known[model, number]

    def _named(self, model: str, listing: ModelListing) -> list[tuple[VersionKey, str]]:
        """Returns the versions that pointers name, with the reason; all if these are damaged."""
        if not listing.generations:
            return []
        try:
            pointers = self._store.pointers_at(model, listing.generations[-1])
        except (DocumentError, ManifestError):
            reason = "the pointers of its model are damaged, and may name it"
            return [((model, number), reason) for number in listing.versions]
        aliases = [((model, n), f"alias {alias}") for alias, n in sorted(pointers.aliases.items())]
        traffic = pointers.traffic
        previous = sorted(self._previous_targets(model, pointers, listing).items())
        return [
            *aliases,
            *(((model, n), f"a rollback of {alias} restores it") for alias, n in previous),
            *(((model, n), traffic.use_of(n)) for n in traffic.versions),
        ]

    def _previous_targets(
        self, model: str, newest: Pointers, listing: ModelListing
    ) -> dict[str, int]:
        """Returns by alias the version before its current one."""
        known = self._previous.get(model)
        if known is not None and known.pointers == newest:
            return known.targets
        if known is not None and known.pointers.generation >= newest.generation:
            known = None  # the store was restored
        found = previous_targets(self._newest_first(model, newest, listing, known), known)
        self._previous[model] = PreviousTargets(newest, found)
        return found

    def _newest_first(
        self, model: str, newest: Pointers, listing: ModelListing, known: PreviousTargets | None
    ) -> Iterator[Pointers]:
        """Yields the generations that can be read; that of `known` is not read again."""
        yield newest
        for generation in reversed(listing.generations[:-1]):
            if known is not None and generation == known.pointers.generation:
                yield known.pointers
                continue
            with suppress(DocumentError, ManifestError):
                yield self._store.pointers_at(model, generation)


def deleted_numbers(store: ModelStore, model: str) -> set[int]:
    """Returns the numbers of a model that have a tombstone.

    Raises:
        StorageError: the store cannot be read.
    """
    names = (path.rpartition("/")[2] for path in store.storage.list(f"{model}/tombstones/"))
    return {int(name[:8]) for name in names if _TOMBSTONE.fullmatch(name)}
