"""Versions that break callers of the version in production.

In: a store. Out: what breaks, in words; or an error, unless a person allows it.
"""

from flambeau.protocol.called_signature import for_callers
from model_store.errors import BreakingVersionError
from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION, Pointers
from model_store.records.tombstone import refuse_deleted
from model_store.semver.compatibility import what_breaks
from model_store.store import ModelStore


def refuse_unfitting(
    store: ModelStore,
    model: str,
    version: int,
    alias: str,
    current: Pointers | None,
    *,
    allow_breaking: bool = False,
) -> None:
    """Refuses a version for production that breaks callers of the one there.

    Raises:
        BreakingVersionError: it does, and that is not allowed.
        StoreError: the version was deleted, or it or the live one cannot be read.
    """
    live = current.aliases.get(PRODUCTION) if current else None
    if alias != PRODUCTION or allow_breaking or live is None or live == version:
        return
    refuse_deleted(store.storage, model, version)
    refuse_breaking(store.manifest(model, live), store.manifest(model, version))


def refuse_breaking(live: Manifest, version: Manifest) -> None:
    """Refuses a version that breaks callers of the live one.

    Raises:
        BreakingVersionError: it does; the message says by what.
    """
    if reason := what_breaks(live, version):
        raise BreakingVersionError(
            f"version {version.version_text} breaks callers of {live.version_text}, the one in "
            f"production: {reason}; publish a version that fits, or allow it (--allow-breaking; "
            "allow_breaking in a call)",
            for_callers(live.signature),
            for_callers(version.signature),
        )


def broken_callers_of_production(store: ModelStore, version: Manifest) -> str:
    """Returns what of a version breaks callers of production's, in words; empty if nothing does.

    Raises:
        StoreError: the store, or a manifest, cannot be read.
    """
    live = live_manifest(store, version.model)
    reason = "" if live is None else what_breaks(live, version)
    if live is None or not reason:
        return ""
    return (
        f"version {version.version_text} breaks callers of {live.version_text}, the one in "
        f"production: {reason}; its promotion to production takes --allow-breaking"
    )


def live_manifest(store: ModelStore, model: str) -> Manifest | None:
    """Returns the manifest of the version in production; None if there is none.

    Raises:
        StoreError: the store, or the manifest, cannot be read.
    """
    pointers = store.pointers(model)
    live = pointers.aliases.get(PRODUCTION) if pointers else None
    return None if live is None else store.manifest(model, live)
