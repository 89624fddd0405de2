"""What a generation of pointers changed of a model's traffic, for histories. Pure.

In: a generation, and the one before it. Out: a change each of the rollout, the shadow, the split.
"""

from dataclasses import dataclass
from typing import Any, Literal

from model_store.pointers import PRODUCTION, Pointers
from model_store.rollouts.amounts import duration_text, share_text
from model_store.rollouts.traffic import Rollout, Shadow, Split, Traffic

Kind = Literal["rollout", "shadow", "split"]
Act = Literal[
    "started", "advanced", "paused", "resumed", "promoted", "rolled back", "aborted", "ended"
]
"""`rolled back` by a controller, `aborted` by a person; `ended` as production moved meanwhile."""
CONTROLLER = "rollout controller"
"""First words of `who`, where a controller moved the pointers."""


@dataclass(frozen=True, slots=True)
class TrafficChange:
    """A change of the rollout, the shadow or the split of a model."""

    kind: Kind
    act: Act
    id: str
    text: str
    """What changed, in words."""

    def document(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {"kind": self.kind, "act": self.act, "id": self.id, "text": self.text}


def traffic_changes(before: Pointers | None, after: Pointers) -> tuple[TrafficChange, ...]:
    """Returns what a generation changed of the traffic.

    Args:
        before: the generation before it; None for none.
        after: the generation.
    """
    old, new = (before.traffic if before else Traffic()), after.traffic
    found: list[TrafficChange] = []
    if old.rollout and (new.rollout is None or new.rollout.id != old.rollout.id):
        found.append(_end_of_rollout(old.rollout, before, after))
    if new.rollout is not None:
        same = old.rollout if old.rollout and old.rollout.id == new.rollout.id else None
        found += _of_rollout(same, new.rollout)
    for change in (_of_shadow(old.shadow, new.shadow), _of_split(old.split, new.split)):
        found += change
    return tuple(found)


def _end_of_rollout(rollout: Rollout, before: Pointers | None, after: Pointers) -> TrafficChange:
    assert before is not None, "a rollout ends after it was there"
    act: Act = "aborted"
    live = after.aliases.get(PRODUCTION)
    if live == rollout.candidate:
        act = "promoted"
    elif live != before.aliases.get(PRODUCTION):
        act = "ended"
    elif after.evidence is not None or after.who.startswith(CONTROLLER):
        act = "rolled back"
    words = f"rollout of version {rollout.candidate} {act}"
    if act != "promoted":
        words += f" at {share_text(rollout.share)}"
    return TrafficChange("rollout", act, rollout.id, words)


def _of_rollout(before: Rollout | None, after: Rollout) -> list[TrafficChange]:
    def changed(act: Act, text: str) -> list[TrafficChange]:
        named = f"rollout of version {after.candidate} {text}"
        return [TrafficChange("rollout", act, after.id, named)]

    if before is None:
        steps = ", ".join(map(share_text, after.steps))
        return changed("started", f"started: {steps}, every {duration_text(after.every_s)}")
    if after.step != before.step:
        return changed("advanced", f"advanced to {share_text(after.share)}")
    if after.paused and not before.paused:
        return changed("paused", f"paused at {share_text(after.share)}")
    if before.paused and not after.paused:
        return changed("resumed", f"resumed at {share_text(after.share)}")
    return []


def _of_shadow(before: Shadow | None, after: Shadow | None) -> list[TrafficChange]:
    if (before and before.id) == (after and after.id):
        return []
    found = []
    if before is not None:
        words = f"shadow of version {before.candidate} ended"
        found.append(TrafficChange("shadow", "ended", before.id, words))
    if after is not None:
        words = f"shadow of version {after.candidate} started: {share_text(after.sample)}"
        found.append(TrafficChange("shadow", "started", after.id, words))
    return found


def _of_split(before: Split | None, after: Split | None) -> list[TrafficChange]:
    if (before and before.id) == (after and after.id):
        return []
    found = []
    if before is not None:
        found.append(TrafficChange("split", "ended", before.id, f"split '{before.name}' ended"))
    if after is not None:
        arms = ", ".join(f"{arm.version}={share_text(arm.share)}" for arm in after.arms)
        words = f"split '{after.name}' started: {arms}"
        found.append(TrafficChange("split", "started", after.id, words))
    return found
