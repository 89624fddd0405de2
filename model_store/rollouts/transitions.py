"""Steps of rollouts, shadows and splits: pure functions of the pointers to the next generation.

Whoever writes it creates the next numbered file, which fails if another writer was faster; so two
controllers, or a controller and a person, never both move a rollout.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from model_store.errors import RolloutError
from model_store.pointers import PRODUCTION, Pointers
from model_store.rollouts.traffic import Rollout, Shadow, Split


def live_version(pointers: Pointers | None) -> int:
    """Returns the version in production.

    Raises:
        RolloutError: there is none.
    """
    live = pointers.aliases.get(PRODUCTION) if pointers else None
    if live is None:
        raise RolloutError(
            f"'{PRODUCTION}' names no version, so there is nothing to compare another one with; "
            "promote a version first"
        )
    return live


def begun(pointers: Pointers | None, rollout: Rollout, who: str, why: str) -> Pointers:
    """Begins a rollout.

    Raises:
        RolloutError: another rollout or a split has the requests, or the baseline is not live.
    """
    live = live_version(pointers)
    assert pointers is not None, "they name the live version"
    if live != rollout.baseline:
        raise RolloutError(
            f"'{PRODUCTION}' names version {live} and no longer {rollout.baseline}; start again"
        )
    if (old := pointers.traffic.rollout) is not None:
        raise RolloutError(
            f"version {old.candidate} is being rolled out since {old.started:%Y-%m-%d %H:%M}; "
            "abort or promote it first"
        )
    if (split := pointers.traffic.split) is not None:
        raise RolloutError(f"the split '{split.name}' has the requests; end it first")
    return _next(pointers, who, why, rollout=rollout)


def advanced(pointers: Pointers, rollout_id: str, who: str, why: str) -> Pointers:
    """Goes to the next step; the step 1 moves `production` to the candidate and ends the rollout.

    Raises:
        RolloutError: that rollout does not run, or its last step has no next one.
    """
    rollout = running(pointers, rollout_id)
    place = rollout.step + 1
    if place >= len(rollout.steps):
        raise RolloutError(f"the rollout of version {rollout.candidate} is at its last step")
    if rollout.steps[place] == 1:
        return promoted(pointers, rollout_id, who, why)
    return _with(pointers, rollout, who, why, step=place, step_began=datetime.now(UTC), paused="")


def promoted(
    pointers: Pointers, rollout_id: str, who: str, why: str, evidence: dict[str, Any] | None = None
) -> Pointers:
    """Moves `production` to the candidate, and ends the rollout.

    Raises:
        RolloutError: that rollout does not run.
    """
    rollout = running(pointers, rollout_id)
    aliases = {**pointers.aliases, PRODUCTION: rollout.candidate}
    return _next(pointers, who, why, aliases=aliases, evidence=evidence, rollout=None)


def ended(
    pointers: Pointers, rollout_id: str, who: str, why: str, evidence: dict[str, Any] | None = None
) -> Pointers:
    """Ends the rollout: its baseline answers every request again.

    Raises:
        RolloutError: that rollout does not run.
    """
    running(pointers, rollout_id)
    return _next(pointers, who, why, evidence=evidence, rollout=None)


def paused(pointers: Pointers, rollout_id: str, who: str, why: str) -> Pointers:
    """Keeps the rollout at its step.

    Raises:
        RolloutError: that rollout does not run, or is paused.
    """
    rollout = running(pointers, rollout_id)
    if rollout.paused:
        raise RolloutError(
            f"the rollout of version {rollout.candidate} is paused: {rollout.paused}"
        )
    return _with(pointers, rollout, who, why, paused=why[:500] or "paused")


def resumed(pointers: Pointers, rollout_id: str, who: str, why: str) -> Pointers:
    """Lets a paused rollout go on: its step begins again.

    Raises:
        RolloutError: that rollout does not run, or is not paused.
    """
    rollout = running(pointers, rollout_id)
    if not rollout.paused:
        raise RolloutError(f"the rollout of version {rollout.candidate} is not paused")
    return _with(pointers, rollout, who, why, paused="", step_began=datetime.now(UTC))


def running(pointers: Pointers | None, rollout_id: str = "") -> Rollout:
    """Returns the rollout of an id, or the one that there is.

    Raises:
        RolloutError: there is none, or another one.
    """
    rollout = pointers.traffic.rollout if pointers else None
    if rollout is None:
        raise RolloutError("no version is being rolled out; start a rollout first")
    if rollout_id and rollout.id != rollout_id:
        raise RolloutError(
            f"the rollout {rollout_id} has ended; version {rollout.candidate} is being rolled out"
        )
    return rollout


def shadow_begun(pointers: Pointers | None, shadow: Shadow, who: str, why: str) -> Pointers:
    """Begins a shadow.

    Raises:
        RolloutError: there is one, or no other version is live.
    """
    live = live_version(pointers)
    assert pointers is not None, "they name the live version"
    if live == shadow.candidate:
        raise RolloutError(f"version {live} answers the requests itself; name another version")
    if (old := pointers.traffic.shadow) is not None:
        raise RolloutError(
            f"version {old.candidate} is a shadow since {old.started:%Y-%m-%d %H:%M}; stop it first"
        )
    return _next(pointers, who, why, shadow=shadow)


def shadow_stopped(pointers: Pointers | None, who: str, why: str) -> Pointers:
    """Ends the shadow.

    Raises:
        RolloutError: there is none.
    """
    if pointers is None or pointers.traffic.shadow is None:
        raise RolloutError("no version is a shadow; start one first")
    return _next(pointers, who, why, shadow=None)


def split_begun(pointers: Pointers | None, split: Split, who: str, why: str) -> Pointers:
    """Begins a split.

    Raises:
        RolloutError: another one or a rollout has the requests, or no version is live.
    """
    live_version(pointers)
    assert pointers is not None, "they name the live version"
    if (rollout := pointers.traffic.rollout) is not None:
        raise RolloutError(
            f"version {rollout.candidate} is being rolled out; abort or promote it first"
        )
    if (old := pointers.traffic.split) is not None:
        raise RolloutError(f"the split '{old.name}' has the requests; end it first")
    return _next(pointers, who, why, split=split)


def split_ended(pointers: Pointers | None, who: str, why: str) -> Pointers:
    """Ends the split: the version of `production` answers every request again.

    Raises:
        RolloutError: there is none.
    """
    if pointers is None or pointers.traffic.split is None:
        raise RolloutError("there is no split; start one first")
    return _next(pointers, who, why, split=None)


def _with(pointers: Pointers, rollout: Rollout, who: str, why: str, **changes: Any) -> Pointers:
    changed = Rollout.model_validate(rollout.model_dump() | changes)
    return _next(pointers, who, why, rollout=changed)


def _next(
    pointers: Pointers,
    who: str,
    why: str,
    *,
    aliases: Mapping[str, int] | None = None,
    evidence: dict[str, Any] | None = None,
    **traffic: Any,
) -> Pointers:
    """Returns the next generation, with these parts of the traffic and the others as they are."""
    moved = pointers.traffic.model_copy(update=traffic)
    return Pointers.after(pointers, aliases or pointers.aliases, who, why, moved, evidence)
