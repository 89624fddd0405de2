"""Refuses versions for production that break callers of the version there, unless it is allowed."""

from model_store.errors import BreakingVersionError
from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION
from model_store.semver.compatibility import what_breaks
from model_store.store import ModelStore


def refuse_breaking(live: Manifest, version: Manifest) -> None:
    """Refuses a version that breaks callers of the live one.

    Raises:
        BreakingVersionError: it does; the message says by what.
    """
    if reason := what_breaks(live, version):
        raise BreakingVersionError(
            f"version {version.version_text} breaks callers of {live.version_text}, the one in "
            f"production: {reason}; publish a version that fits, or allow it (--allow-breaking; "
            "allow_breaking in a call)"
        )


def live_manifest(store: ModelStore, model: str) -> Manifest | None:
    """Returns the manifest of the version in production; None if there is none.

    Raises:
        StoreError: the store, or the manifest, cannot be read.
    """
    pointers = store.pointers(model)
    live = pointers.aliases.get(PRODUCTION) if pointers else None
    return None if live is None else store.manifest(model, live)
