"""A move of an alias as a person asks for it, and the pointers that it makes.

In: plain data, and the newest pointers. Out: the next generation, which is not written.

Rule: what a request records and what an approval executes is made by the same function, of the
same data and, by the number of their generation, of the same pointers.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from flambeau.protocol.strict import StrictModel, nearest_name
from model_store.errors import StalePointerError, VersionInUseError, VersionNotFoundError
from model_store.host.this_user import this_user
from model_store.pointers import PRODUCTION, Pointers, rollback_target
from model_store.rollouts.amounts import share_text
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.rollouts.rollout_store import (
    Act,
    rollout_promotion,
    rollout_start,
    shadow_start,
    split_start,
)
from model_store.semver.breaking import refuse_unfitting
from model_store.store import ModelStore

MoveAct = Literal[
    "promote",
    "rollback",
    "remove alias",
    "rollout start",
    "rollout promote",
    "shadow start",
    "split start",
]


class AskedMove(StrictModel):
    """A move of an alias, or the start of what routes its requests."""

    act: MoveAct
    alias: str = PRODUCTION
    version: int | None = None
    """The version that the alias shall name, of the act `promote` alone."""
    allow_breaking: bool = False
    first: bool = False
    """True for a promotion of an alias that names nothing yet."""
    why: str = ""
    rollout_id: str = ""
    """The rollout that is promoted, of the act `rollout promote` alone; empty for any."""
    rollout: RolloutRequest | None = None
    shadow: ShadowRequest | None = None
    split: SplitRequest | None = None

    @model_serializer(mode="wrap")
    def _without_first(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = write(self)
        if not self.first:  # older processes know no such key
            document.pop("first", None)
        return document

    @property
    def starts(self) -> bool:
        """True for the start of a rollout, a shadow or a split, which moves no alias."""
        return bool(self.rollout or self.shadow or self.split)

    @property
    def target(self) -> str:
        """The alias or version that moves, as the audit log has it behind the model's name."""
        if self.act == "promote":
            return f"@{self.alias}={self.version}"
        if self.split is not None:
            arms = ",".join(f"{arm.version}={share_text(arm.share)}" for arm in self.split.arms)
            return f" {self.split.name} {arms}"
        started = self.rollout or self.shadow
        if started is not None:
            return f"/{started.version}"
        return f"@{self.alias}" if self.act in ("rollback", "remove alias") else ""


def started(wanted: RolloutRequest | ShadowRequest | SplitRequest) -> AskedMove:
    """Returns the start of a rollout, a shadow or a split as a move."""
    match wanted:
        case RolloutRequest():
            return AskedMove(act="rollout start", why=wanted.why, rollout=wanted)
        case ShadowRequest():
            return AskedMove(act="shadow start", why=wanted.why, shadow=wanted)
        case SplitRequest():
            return AskedMove(act="split start", why=wanted.why, split=wanted)


def planned(
    store: ModelStore, model: str, move: AskedMove, current: Pointers | None, who: str
) -> Pointers:
    """Returns the generation that a move makes.

    Args:
        store: the store.
        model: the model's name.
        move: the move.
        current: the newest pointers; None for none.
        who: who asks for it.

    Raises:
        StoreError: the move is not possible, as its calls without a second person say.
    """
    if current is None:
        store.versions(model)  # the model exists
    if move.act == "promote":
        assert move.version is not None, "a promotion names its version"
        named = current.aliases.get(move.alias) if current else None
        if move.first and named not in (None, move.version):
            raise StalePointerError(
                f"alias '{move.alias}' of '{model}' names version {named} already, and the move is "
                "the first one of an alias alone; leave out 'first' to move it"
            )
        refuse_unfitting(
            store, model, move.version, move.alias, current, allow_breaking=move.allow_breaking
        )
        return store.planned(model, move.version, move.alias, move.why, current, who)
    if move.act == "rollback":
        target = rollback_target(_newest_first(store, model, current), move.alias)
        return store.planned(model, target, move.alias, move.why, current, who)
    if move.act == "remove alias":
        return _removal(model, move, current, who)
    return _traffic_act(store, model, move)(current, who)


def _newest_first(store: ModelStore, model: str, current: Pointers | None) -> Iterator[Pointers]:
    """Yields a generation and those before it, each read when it is asked for."""
    if current is None:
        return
    yield current
    for generation in reversed(store.listing(model)[model].generations):
        if generation < current.generation:
            yield store.pointers_at(model, generation)


def remove_alias(store: ModelStore, model: str, alias: str, why: str = "") -> Pointers:
    """Removes an alias, as a new generation of the pointers.

    Raises:
        VersionInUseError: it is `production`.
        ModelNotFoundError, VersionNotFoundError: there is no such model, or no such alias.
        ConflictError: another writer moved a pointer first.
    """
    move = AskedMove(act="remove alias", alias=alias, why=why)
    return store.point(model, planned(store, model, move, store.pointers(model), ""))


def _removal(model: str, move: AskedMove, current: Pointers | None, who: str) -> Pointers:
    if move.alias == PRODUCTION:
        raise VersionInUseError(
            f"'{PRODUCTION}' of '{model}' selects the version of requests that name none, and is "
            "not removed; promote another version"
        )
    aliases = current.aliases if current else {}
    if move.alias not in aliases:
        hint = nearest_name(move.alias, aliases)
        raise VersionNotFoundError(f"'{model}' has no alias '{move.alias[:128]}'{hint}")
    left = {alias: version for alias, version in aliases.items() if alias != move.alias}
    return Pointers.after(current, left, who or this_user(), move.why)


def _traffic_act(store: ModelStore, model: str, move: AskedMove) -> Act:
    if move.rollout is not None:
        return rollout_start(store, model, move.rollout)
    if move.shadow is not None:
        return shadow_start(store, model, move.shadow)
    if move.split is not None:
        return split_start(store, model, move.split)
    return rollout_promotion(store, model, move.why, move.rollout_id)
