"""The state of a model's rollout, shadow or split, for people. Every function blocks.

In: a store and a model. Out: plain values for JSON; the command line and the registry show them.

Rule: files of the controller are hostile input: a damaged one is told in words, beside the rest.
"""

from datetime import timedelta
from typing import Any

from model_store.errors import StoreError
from model_store.listing import ModelListing
from model_store.pointers import PRODUCTION, Pointers
from model_store.rollouts.traffic import Rollout
from model_store.rollouts.traffic_changes import Kind, TrafficChange, traffic_changes
from model_store.rollouts.verdict_file import stored_verdict
from model_store.store import ModelStore

MOST_GENERATIONS = 200
"""Generations that are read to find how the last rollout ended."""
NO_VERDICT = (
    "no verdict yet: no server has judged it; servers that serve the model write one every few "
    "seconds"
)


def rollout_status(store: ModelStore, model: str) -> dict[str, Any]:
    """Describes the rollout of a model, and how the last one ended if none runs.

    Returns:
        `production`; `rollout`, null if none runs; `verdict`, null if there is none; `note`, a
        sentence; `last`, null while one runs or if none ever ran.

    Raises:
        ModelNotFoundError: the model has no version.
        StoreError: the store, or the newest generation, cannot be read.
    """
    pointers = _pointers(store, model)
    document: dict[str, Any] = {
        "model": model,
        "production": _live(pointers),
        "rollout": None,
        "verdict": None,
        "note": "",
        "last": None,
    }
    rollout = pointers.traffic.rollout if pointers else None
    if rollout is not None:
        verdict, note = _verdict(store, model, rollout.id)
        shown = _rollout_document(rollout)
        return {**document, "rollout": shown, "verdict": verdict, "note": note}
    return {**document, "last": last_ended(store, model, pointers, "rollout")}


def last_ended(
    store: ModelStore, model: str, newest: Pointers | None, kind: Kind
) -> dict[str, Any] | None:
    """Describes the last rollout, shadow or split that ended; None if there was none.

    `production` is the version that it named in the generation that ended it.
    The newest `MOST_GENERATIONS` are read.
    """
    if newest is None:
        return None
    listed = store.listing(model).get(model, ModelListing()).generations
    numbers = [one for one in listed if one < newest.generation][::-1][:MOST_GENERATIONS]
    after = newest
    for number in numbers:
        before = store.pointers_at(model, number)
        ended = [one for one in traffic_changes(before, after) if _ended(one, kind, before)]
        if ended:
            was = getattr(before.traffic, kind).model_dump(mode="json")
            return {
                **was,
                "outcome": ended[0].act,
                "text": ended[0].text,
                "generation": after.generation,
                "production": _live(after),
                "when": after.when.isoformat(),
                "who": after.who,
                "why": after.why,
                "evidence": after.evidence,
            }
        after = before
    return None


def _ended(change: TrafficChange, kind: Kind, before: Pointers) -> bool:
    was = getattr(before.traffic, kind)
    over = ("promoted", "rolled back", "aborted", "ended")
    return change.kind == kind and was is not None and change.id == was.id and change.act in over


def _pointers(store: ModelStore, model: str) -> Pointers | None:
    pointers = store.pointers(model)
    if pointers is None:
        store.versions(model)  # the model exists
    return pointers


def _live(pointers: Pointers | None) -> int | None:
    return pointers.aliases.get(PRODUCTION) if pointers else None


def _rollout_document(rollout: Rollout) -> dict[str, Any]:
    following = rollout.step_began + timedelta(seconds=rollout.every_s)
    is_last = rollout.step + 1 == len(rollout.steps)
    return {
        **rollout.model_dump(mode="json"),
        "share": rollout.share,
        "next_share": None if is_last else rollout.steps[rollout.step + 1],
        "next_step_at": None if is_last or rollout.paused else following.isoformat(),
    }


def _verdict(store: ModelStore, model: str, rollout_id: str) -> tuple[dict[str, Any] | None, str]:
    try:
        found = stored_verdict(store.storage, model, rollout_id)
    except StoreError as error:
        return None, f"the verdict cannot be read: {error}"
    return (found.document(), "") if found else (None, NO_VERDICT)


def shadow_status(store: ModelStore, model: str) -> dict[str, Any]:
    """Describes the shadow of a model: `production`, and `shadow`, null for none.

    Raises:
        ModelNotFoundError: the model has no version.
        StoreError: the store, or the newest generation, cannot be read.
    """
    pointers = _pointers(store, model)
    shadow = pointers.traffic.shadow if pointers else None
    return {
        "model": model,
        "production": _live(pointers),
        "shadow": None if shadow is None else shadow.model_dump(mode="json"),
    }


def split_status(store: ModelStore, model: str) -> dict[str, Any]:
    """Describes the split of a model: `production`, and `split`, null for none.

    Raises:
        ModelNotFoundError: the model has no version.
        StoreError: the store, or the newest generation, cannot be read.
    """
    pointers = _pointers(store, model)
    split = pointers.traffic.split if pointers else None
    return {
        "model": model,
        "production": _live(pointers),
        "split": None if split is None else split.model_dump(mode="json"),
    }
