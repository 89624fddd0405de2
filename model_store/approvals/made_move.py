"""A move of an alias as a person asked for it, and what it changed.

In: a store, a model and a move. Out: the pointers before and after it, and plain values for JSON.
"""

from dataclasses import dataclass
from typing import Any

from model_store.approvals.asked_move import AskedMove, planned
from model_store.pointers import PRODUCTION, Pointers
from model_store.records.moves import changes_between
from model_store.rollouts.traffic import Traffic
from model_store.store import ModelStore


@dataclass(frozen=True, slots=True)
class MadeMove:
    """A move, and the generations before and after it."""

    before: Pointers | None
    """None for the first generation."""
    pointers: Pointers
    """Those `before`, if nothing had to move."""

    def document(self) -> dict[str, Any]:
        """Returns plain values for JSON: the pointers, `changes` of aliases, and what `ended`.

        `ended`, such as `["rollout of version 3"]`, is left out if nothing did.
        """
        before = self.before.aliases if self.before else {}
        changes = [one.document() for one in changes_between(before, self.pointers.aliases)]
        document = {**self.pointers.model_dump(mode="json"), "changes": changes}
        traffic = self.before.traffic if self.before else Traffic()
        ended = traffic.ended_in(self.pointers.traffic)
        return {**document, "ended": list(ended)} if ended else document


def make_move(store: ModelStore, model: str, move: AskedMove, who: str = "") -> MadeMove:
    """Makes a move; a promotion that would change nothing makes no generation.

    Args:
        store: the store.
        model: the model's name.
        move: the move.
        who: who makes it, for the history; empty for the user of this process.

    Raises:
        StoreError: as `planned`.
        ConflictError: another writer moved a pointer concurrently; read again and retry.
    """
    current = store.pointers(model)
    if current is not None and is_made(current, move):
        return MadeMove(current, current)
    return MadeMove(current, store.point(model, planned(store, model, move, current, who)))


def move_of(store: ModelStore, model: str, pointers: Pointers) -> MadeMove:
    """Returns the move that made a generation.

    Raises:
        StoreError: the generation before it cannot be read.
    """
    number = pointers.generation - 1
    return MadeMove(store.pointers_at(model, number) if number else None, pointers)


def is_made(current: Pointers, move: AskedMove) -> bool:
    """Returns True for a promotion to the version that gets all requests of the alias already."""
    if move.act != "promote" or current.aliases.get(move.alias) != move.version:
        return False
    return move.alias != PRODUCTION or not current.traffic.shares_requests
