"""Finds the models that a process should serve and does not, with the reasons.

In: the store's listing, the pointers that were read, and the directory's states of the versions.
Out: reasons by model. A model is served if the version that `production` names is loaded; without
that pointer, if any version of it is. A version that was unloaded to free memory is loaded again
on request, and counts as served.
"""

from collections.abc import Iterable, Mapping, Sequence

from flambeau.protocol.strict import nearest_name
from model_store.listing import ModelListing
from model_store.pointers import PRODUCTION, Pointers
from model_store.store import ModelStore
from services.inference.loading.model_failure import in_thread, reason_of
from services.queueing.records import ServedVersion


async def foreign_layout(store: ModelStore) -> str:
    """Describes what a store without a version contains instead."""
    try:
        return await in_thread(store.foreign_layout)
    except Exception as error:
        return reason_of(error)


def missing_models(
    named: Sequence[str], listings: Mapping[str, ModelListing], url: str
) -> dict[str, str]:
    """Returns named models that the store does not have, with the nearest name that it has.

    Args:
        named: the setting `models`.
        listings: models of the store.
        url: URL of the store, for the reasons.
    """
    there = [name for name, one in listings.items() if one.versions or one.unreadable]
    return {
        name: f"the store {url} has no such model{nearest_name(name, there)}"
        for name in named
        if name not in there
    }


def refusal(
    listing: ModelListing, pointers: Pointers | None, known: Iterable[ServedVersion]
) -> str:
    """Returns why a model is not served; empty if it is, or is still being loaded.

    Args:
        listing: listing of the model.
        pointers: newest pointers that could be read.
        known: the directory's states of its versions.
    """
    versions = {served.lane.version: served for served in known}
    if listing.unreadable:
        is_served = any(served.state == "ready" for served in versions.values())
        return "" if is_served else listing.unreadable
    if pointers is None and listing.generations:
        return "its pointers are unreadable, so its production version is unknown"
    target = pointers.aliases.get(PRODUCTION) if pointers else None
    if target is not None:
        if target not in listing.versions:
            return f"production points to version {target}, which the store does not have"
        versions = {number: one for number, one in versions.items() if number == target}
    if any(served.state != "failed" for served in versions.values()):
        return ""
    return "; ".join(
        f"version {number}{' (production)' if number == target else ''} was refused: {one.reason}"
        for number, one in sorted(versions.items())
    )
