"""Rollouts, shadows and splits on a store: each act reads the pointers and writes the next ones.

In: a store, a model and a request. Out: the new generation.

Rules: a version that is named exists, was not deleted, and breaks no caller of the version in
production, unless that is allowed; an act that another writer preceded is decided again, by what
that writer left. The pointers are read before the tombstones, so a deletion that is not seen fails
on the generation that the act writes.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from pydantic import ValidationError

from flambeau.protocol.strict import StrictModel, explain
from model_store.errors import (
    InvalidRolloutError,
    RolloutError,
)
from model_store.host.this_user import this_user
from model_store.manifest import Manifest, check_name
from model_store.pointers import PRODUCTION, Pointers
from model_store.records.tombstone import refuse_deleted
from model_store.rollouts import transitions
from model_store.rollouts.golden_spreads import golden_spreads
from model_store.rollouts.guard_choice import chosen_guards
from model_store.rollouts.repeated_move import move_repeatedly
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.rollouts.traffic import Rollout, Shadow, Split
from model_store.semver.breaking import refuse_breaking
from model_store.store import ModelStore

M = TypeVar("M", bound=StrictModel)
Act = Callable[[Pointers | None, str], Pointers]
"""Makes the next generation of the newest one, and of who moves it; writes nothing."""


def start_rollout(
    store: ModelStore, model: str, wanted: RolloutRequest, who: str = "", live: int | None = None
) -> Pointers:
    """Starts a rollout of a version beside that of production.

    Args:
        store: the store.
        model: the model's name.
        wanted: the rollout.
        who: who starts it, for the history; empty for the user of this process.
        live: the version that production must name; None for any.

    Raises:
        ModelNotFoundError, VersionNotFoundError, VersionDeletedError: there is no such version.
        BreakingVersionError: it breaks callers of the live version, and that is not allowed.
        RolloutError: it cannot start now, or is none.
        ConflictError: other writers moved the pointers, again and again.
    """
    return _moved(store, model, who, rollout_start(store, model, wanted, live))


def rollout_start(
    store: ModelStore, model: str, wanted: RolloutRequest, live: int | None = None
) -> Act:
    """Returns the act of `start_rollout`."""

    def begin(current: Pointers | None, by: str) -> Pointers:
        candidate = _version(store, model, wanted.version)
        named = transitions.live_version(current)
        if live not in (None, named):
            raise RolloutError(
                f"'{PRODUCTION}' names version {named} and no longer {live}; decide again"
            )
        baseline = store.manifest(model, named)
        _refuse_breaking(baseline, [candidate], allowed=wanted.allow_breaking)
        guards = chosen_guards(baseline, candidate, wanted.mirrored, wanted.risk, wanted.guards)
        is_of_numbers = guards.disagreement is not None and guards.outputs is None
        rollout = _parsed(
            Rollout,
            candidate=wanted.version,
            baseline=named,
            steps=wanted.steps,
            every_s=wanted.every_s,
            sticky=wanted.sticky,
            mirrored=wanted.mirrored,
            guards=guards.model_dump(),
            spreads=_spreads(store, baseline) if is_of_numbers else {},
        )
        return transitions.begun(current, rollout, by, wanted.why)

    return begin


def pause_rollout(
    store: ModelStore, model: str, why: str = "", who: str = "", rollout_id: str = ""
) -> Pointers:
    """Keeps the rollout at its step.

    Args:
        store: the store.
        model: the model's name.
        why: the reason, for the history.
        who: who does it, for the history; empty for the user of this process.
        rollout_id: the rollout that is meant; empty for the one that runs.

    Raises:
        RolloutError: no rollout runs, or another one, or it is paused.
        ConflictError: other writers moved the pointers, again and again.
    """
    return _moved(
        store, model, who, lambda now, by: transitions.paused(_some(now), rollout_id, by, why)
    )


def resume_rollout(
    store: ModelStore, model: str, why: str = "", who: str = "", rollout_id: str = ""
) -> Pointers:
    """Lets the paused rollout go on; arguments and errors are as those of `pause_rollout`."""
    return _moved(
        store, model, who, lambda now, by: transitions.resumed(_some(now), rollout_id, by, why)
    )


def abort_rollout(
    store: ModelStore, model: str, why: str = "", who: str = "", rollout_id: str = ""
) -> Pointers:
    """Ends the rollout, as `pause_rollout` has it; its baseline answers every request again."""
    return _moved(
        store, model, who, lambda now, by: transitions.ended(_some(now), rollout_id, by, why)
    )


def promote_rollout(
    store: ModelStore, model: str, why: str = "", who: str = "", rollout_id: str = ""
) -> Pointers:
    """Points production at the candidate, whatever the evidence says, and ends the rollout.

    Arguments are those of `pause_rollout`.

    Raises:
        VersionDeletedError: the candidate was deleted.
        RolloutError: no rollout runs, or another one.
        ConflictError: other writers moved the pointers, again and again.
    """
    return _moved(store, model, who, rollout_promotion(store, model, why, rollout_id))


def rollout_promotion(store: ModelStore, model: str, why: str = "", rollout_id: str = "") -> Act:
    """Returns the act of `promote_rollout`."""

    def promote(current: Pointers | None, by: str) -> Pointers:
        rollout = transitions.running(current, rollout_id)
        _version(store, model, rollout.candidate)
        return transitions.promoted(_some(current), rollout.id, by, why)

    return promote


def start_shadow(store: ModelStore, model: str, wanted: ShadowRequest, who: str = "") -> Pointers:
    """Starts a shadow; errors are those of `start_rollout`."""
    return _moved(store, model, who, shadow_start(store, model, wanted))


def shadow_start(store: ModelStore, model: str, wanted: ShadowRequest) -> Act:
    """Returns the act of `start_shadow`."""

    def begin(current: Pointers | None, by: str) -> Pointers:
        candidate = _version(store, model, wanted.version)
        live = store.manifest(model, transitions.live_version(current))
        _refuse_breaking(live, [candidate], allowed=wanted.allow_breaking)
        shadow = _parsed(
            Shadow,
            candidate=wanted.version,
            sample=wanted.sample,
            keep=wanted.keep,
            spreads=_spreads(store, live),
        )
        return transitions.shadow_begun(current, shadow, by, wanted.why)

    return begin


def stop_shadow(store: ModelStore, model: str, why: str = "", who: str = "") -> Pointers:
    """Ends the shadow; see `transitions.shadow_stopped` for the errors."""
    return _moved(store, model, who, lambda now, by: transitions.shadow_stopped(now, by, why))


def start_split(store: ModelStore, model: str, wanted: SplitRequest, who: str = "") -> Pointers:
    """Starts a split; errors are those of `start_rollout`, for each of its versions."""
    return _moved(store, model, who, split_start(store, model, wanted))


def split_start(store: ModelStore, model: str, wanted: SplitRequest) -> Act:
    """Returns the act of `start_split`."""

    def begin(current: Pointers | None, by: str) -> Pointers:
        split = _parsed(
            Split,
            name=wanted.name,
            arms=[arm.model_dump() for arm in wanted.arms],
            sticky=wanted.sticky,
        )
        arms = [_version(store, model, arm.version) for arm in split.arms]
        live = store.manifest(model, transitions.live_version(current))
        _refuse_breaking(live, arms, allowed=wanted.allow_breaking)
        return transitions.split_begun(current, split, by, wanted.why)

    return begin


def end_split(store: ModelStore, model: str, why: str = "", who: str = "") -> Pointers:
    """Ends the split; see `transitions.split_ended` for the errors."""
    return _moved(store, model, who, lambda now, by: transitions.split_ended(now, by, why))


def _moved(store: ModelStore, model: str, who: str, act: Act) -> Pointers:
    """Writes what an act makes of the newest generation; repeats it after other writers."""
    check_name(model)

    def following(current: Pointers | None) -> Pointers:
        if current is None:
            store.versions(model)  # the model exists
        return act(current, who or this_user())

    moved = move_repeatedly(store, model, following)
    assert moved is not None, "the act always moves"
    return moved


def _version(store: ModelStore, model: str, version: int) -> Manifest:
    refuse_deleted(store.storage, model, version)
    return store.manifest(model, version)


def _refuse_breaking(live: Manifest, versions: Iterable[Manifest], *, allowed: bool) -> None:
    for version in () if allowed else versions:
        refuse_breaking(live, version)


def _spreads(store: ModelStore, live: Manifest) -> dict[str, float]:
    """Returns the spreads of a version's golden answers; none for a version with classes."""
    return {} if live.signature.labels else golden_spreads(store, live)


def _some(current: Pointers | None) -> Pointers:
    """Returns the pointers of a model with a rollout.

    Raises:
        RolloutError: it has none.
    """
    transitions.running(current)
    assert current is not None, "a rollout is in some pointers"
    return current


def _parsed(kind: type[M], **fields: object) -> M:
    """Returns a record of a request's values.

    Raises:
        InvalidRolloutError: they contradict each other.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise InvalidRolloutError(explain(error, kind)) from error
