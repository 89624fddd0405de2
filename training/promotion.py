"""Moves an alias to a new version, if the recipe says so and what it was decided by still holds."""

from dataclasses import dataclass

from model_store.errors import ConflictError, StalePointerError
from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION
from model_store.store import ModelStore
from training.recipe.parts.promotion_condition import findings
from training.recipe.recipe import Recipe
from training.reporting.report import LiveComparison

MOST_ATTEMPTS = 10
"""How often others may move a pointer at the same moment."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """What became of the alias."""

    moved: bool
    text: str
    """For people, behind the name of the version: `→ production`, `; production stays ...`."""


def promote(
    recipe: Recipe, manifest: Manifest, store: ModelStore, comparison: LiveComparison | None = None
) -> Promotion:
    """Points the recipe's alias at the new version, or says why not.

    Args:
        recipe: its `publish` says which alias, and when.
        manifest: of the new version.
        store: has its pointers.
        comparison: with the live version, where the recipe asks for one.

    Raises:
        ConflictError: somebody else moved a pointer at the same moment.
    """
    alias = recipe.publish.alias
    if alias is None:
        return Promotion(False, "; no alias moves")
    rule = recipe.publish.rule()
    found = findings(rule, manifest.lineage.metrics)
    texts = [one.text() for one in found if not one.met] or [one.text() for one in found]
    met = all(one.met for one in found)
    expecting: dict[str, int | None] = {alias: None} if rule.first else {}
    if rule.live is not None:
        assert comparison is not None, "a recipe with a comparison was compared"
        texts.append(comparison.text())
        met = met and comparison.met
        expecting = {PRODUCTION: comparison.version}
    why, finding = f"trained from recipe '{recipe.name}'", f" ({'; '.join(texts)})" if texts else ""
    if not met:
        return Promotion(False, f"; {alias} stays where it is{finding}")
    try:
        _move(store, manifest, alias, why + finding, expecting)
    except StalePointerError as error:
        moved_on = "" if rule.first else f" ({error})"
        return Promotion(False, f"; {alias} stays where it is{moved_on}")
    return Promotion(True, f" → {alias}{finding}")


def _move(
    store: ModelStore, manifest: Manifest, alias: str, why: str, expecting: dict[str, int | None]
) -> None:
    """Moves it; where a decision is known to hold still, in spite of others who move pointers."""
    for attempt in range(1, MOST_ATTEMPTS + 1):
        try:
            store.promote(manifest.model, manifest.version, alias, why, expecting=expecting)
            return
        except StalePointerError:
            raise
        except ConflictError:
            if not expecting or attempt == MOST_ATTEMPTS:
                raise
