"""Moves an alias to a new version, or starts its rollout, if the recipe's conditions still hold."""

import shlex
from dataclasses import dataclass

from model_store.errors import (
    BreakingVersionError,
    ConflictError,
    RolloutError,
    StalePointerError,
)
from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION
from model_store.rollouts.amounts import share_text
from model_store.rollouts.requests import RolloutRequest
from model_store.rollouts.rollout_store import start_rollout
from model_store.store import ModelStore
from training.recipe.parts.promotion_condition import findings
from training.recipe.recipe import Recipe
from training.reporting.report import LiveComparison

DEFAULT_STORE = "./var/model_store"
"""Store of `flambeau models promote` unless one is given."""
MOST_ATTEMPTS = 10
"""Attempts to move a pointer while other writers move pointers of the model too."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """The outcome for the alias."""

    moved: bool
    text: str
    """Text for people, after the version: `→ production`, `; production stays ...`."""
    stays: str = ""
    """The alias, if the conditions kept it; a person may move it by hand."""

    def advice(self, manifest: Manifest, store_url: str) -> str:
        """Returns the command that moves an alias which stayed; empty if none did."""
        if not self.stays:
            return ""
        alias = f" --alias {self.stays}" if self.stays != PRODUCTION else ""
        store = f" --store {shlex.quote(store_url)}" if store_url != DEFAULT_STORE else ""
        moves = f"flambeau models promote {manifest.model} {manifest.version}{alias}{store}"
        return f"; to move it: {moves}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of the conditions of a recipe for one version."""

    met: bool
    finding: str
    """The conditions as found, for people; empty for none."""
    why: str
    """Reason of the move, for the history."""


def decide(
    recipe: Recipe, manifest: Manifest, comparison: LiveComparison | None = None
) -> Decision:
    """Judges a version by the conditions of its recipe, but `first`.

    Args:
        recipe: the run.
        manifest: the manifest of the new version.
        comparison: the comparison with the live version, if the recipe asks for one.
    """
    rule = recipe.publish.rule()
    found = findings(rule, manifest.lineage.metrics)
    texts = [one.text() for one in found if not one.met] or [one.text() for one in found]
    met = all(one.met for one in found)
    if rule.live is not None:
        assert comparison is not None, "a recipe with a comparison was compared"
        texts.append(comparison.text())
        met = met and comparison.met
    finding = f" ({'; '.join(texts)})" if texts else ""
    return Decision(met, finding, f"trained from recipe '{recipe.name}'{finding}")


def promote(
    recipe: Recipe, manifest: Manifest, store: ModelStore, comparison: LiveComparison | None = None
) -> Promotion:
    """Points the recipe's alias at the new version, or starts its rollout, or says why not.

    Args:
        recipe: the run; its `publish` has the alias and the conditions.
        manifest: the manifest of the new version.
        store: the model store, which has the pointers.
        comparison: the comparison with the live version, if the recipe asks for one.

    Raises:
        ConflictError: another writer moved a pointer at the same moment.
        StoreError: the store failed.
    """
    alias = recipe.publish.alias
    if alias is None:
        return Promotion(False, "; no alias moves")
    rule, decision = recipe.publish.rule(), decide(recipe, manifest, comparison)
    finding = decision.finding
    expecting: dict[str, int | None] = {alias: None} if rule.first else {}
    if comparison is not None and rule.live is not None:
        expecting = {PRODUCTION: comparison.version}
    if not decision.met:
        return Promotion(False, f"; {alias} stays where it is{finding}", alias)
    if recipe.publish.rollout is not None:
        live = _live(store, manifest.model)
        expecting = expecting or {alias: live}
        if live is not None and expecting[alias] == live:
            wanted = recipe.publish.rollout.request(manifest.version, decision.why)
            return _started(store, manifest, wanted, live, finding)
    try:
        _move(store, manifest, alias, decision.why, expecting)
    except StalePointerError as error:
        reason = f"{alias} names a version, and publish.if is first" if rule.first else str(error)
        return Promotion(False, f"; {alias} stays where it is ({reason})", alias)
    return Promotion(True, f" → {alias}{finding}")


def _live(store: ModelStore, model: str) -> int | None:
    pointers = store.pointers(model)
    return pointers.aliases.get(PRODUCTION) if pointers else None


def _started(
    store: ModelStore,
    manifest: Manifest,
    wanted: RolloutRequest,
    live: int,
    finding: str,
) -> Promotion:
    """Starts a rollout beside the live version, or returns the reason against it."""
    try:
        start_rollout(store, manifest.model, wanted, live=live)
    except (RolloutError, BreakingVersionError) as error:
        return Promotion(False, f"; {PRODUCTION} stays where it is ({error})")
    steps = ", ".join(map(share_text, wanted.steps))
    return Promotion(False, f"; a rollout beside version {live} has started: {steps}{finding}")


def _move(
    store: ModelStore, manifest: Manifest, alias: str, why: str, expecting: dict[str, int | None]
) -> None:
    """Moves the alias; retries after other writers if `expecting` guards the decision."""
    for attempt in range(1, MOST_ATTEMPTS + 1):
        try:
            store.promote(manifest.model, manifest.version, alias, why, expecting=expecting)
            return
        except StalePointerError:
            raise
        except ConflictError:
            if not expecting or attempt == MOST_ATTEMPTS:
                raise
