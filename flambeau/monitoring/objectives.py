"""The objectives of a store's models, read from their live versions."""

from model_store.pointers import PRODUCTION
from model_store.slo import DEFAULT_SLO, Slo
from model_store.store import ModelStore


def stored_objectives(store: ModelStore) -> dict[str, Slo]:
    """Returns the objectives by model: of the version in production, otherwise of the newest.

    Args:
        store: store whose manifests are read.

    Raises:
        StoreError: the store or a manifest in it cannot be read.
    """
    found = {}
    for model, listing in store.listing().items():
        if not listing.versions:
            continue
        pointers = store.pointers(model)
        live = pointers.aliases.get(PRODUCTION) if pointers else None
        found[model] = store.manifest(model, live or listing.versions[-1]).slo or DEFAULT_SLO
    return found
