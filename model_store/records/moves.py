"""The moves of a model's aliases: the difference of each generation from the one before it.

In: a store and a model. Out: moves, the newest first; or the aliases as they were at a time.

Rule: generations are ordered by number, not by time, since the clocks of two writers may differ.
The state at a time is that of the last generation, by number, whose time is not later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from model_store.errors import HistoryTooLongError
from model_store.listing import ModelListing
from model_store.pointers import Pointers
from model_store.rollouts.traffic_changes import TrafficChange, traffic_changes
from model_store.store import ModelStore

MAX_TIME_CHARACTERS = 64
"""Limit of a time in text."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one alias by a generation."""

    alias: str
    before: int | None
    """The version that it named before; None for a new alias."""
    after: int | None
    """The version that it names now; None for an alias that was removed."""

    def document(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {"alias": self.alias, "from": self.before, "to": self.after}


@dataclass(frozen=True, slots=True)
class Move:
    """A generation of pointers, and its changes; none if a version was deleted."""

    pointers: Pointers
    changes: tuple[Change, ...]
    traffic_changes: tuple[TrafficChange, ...] = ()
    """What it changed of a rollout, a shadow or a split."""

    def document(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        changes = [change.document() for change in self.changes]
        traffic = [change.document() for change in self.traffic_changes]
        document = self.pointers.model_dump(mode="json")
        document["changes"] = changes
        return {**document, "traffic_changes": traffic} if traffic else document


@dataclass(frozen=True, slots=True)
class MovesPage:
    """Some moves, the newest first."""

    moves: tuple[Move, ...]
    next: int | None
    """The generation before which the next page begins; None on the last one."""


def changes_between(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Change, ...]:
    """Returns the aliases that name another version than before, by name."""
    names = sorted({*before, *after})
    changes = (Change(name, before.get(name), after.get(name)) for name in names)
    return tuple(one for one in changes if one.before != one.after)


def moves_page(store: ModelStore, model: str, limit: int, before: int | None = None) -> MovesPage:
    """Reads the newest moves of a model.

    Args:
        store: the store.
        model: the model's name.
        limit: number of moves.
        before: the generation before which the page begins; None for the newest.

    Raises:
        ModelNotFoundError: it has no version.
        StoreError: a generation is damaged, or the store cannot be read.
    """
    numbers = [one for one in _generations(store, model) if before is None or one < before]
    read = [store.pointers_at(model, one) for one in numbers[::-1][: limit + 1]]
    olders: list[Pointers | None] = [*read[1:], None]
    moves = [
        Move(
            pointers,
            changes_between(older.aliases if older else {}, pointers.aliases),
            traffic_changes(older, pointers),
        )
        for pointers, older in zip(read[:limit], olders, strict=False)
    ]
    return MovesPage(tuple(moves), numbers[-limit] if len(numbers) > limit else None)


def pointers_when(
    store: ModelStore, model: str, when: datetime, most: int | None = None
) -> Pointers | None:
    """Returns the generation that was in force at a time; None before the first one.

    Args:
        store: the store.
        model: the model's name.
        when: the time, with its zone.
        most: generations to read, from the newest on; None for all.

    Raises:
        ModelNotFoundError: it has no version.
        HistoryTooLongError: none of the newest `most` is old enough.
        StoreError: a generation is damaged, or the store cannot be read.
    """
    for read, number in enumerate(reversed(_generations(store, model))):
        if read == most:
            raise HistoryTooLongError(
                f"'{model}' has had {most:,} moves since {when:%Y-%m-%d %H:%M}, as many as this "
                "call reads; ask for a later time, or the store itself (flambeau models history "
                "--store)"
            )
        pointers = store.pointers_at(model, number)
        if zoned(pointers.when) <= when:
            return pointers
    return None


def state_document(model: str, at: datetime, pointers: Pointers | None) -> dict[str, Any]:
    """Describes the aliases of a model at a time, and the move that made them, for JSON."""
    found = pointers.model_dump(mode="json") if pointers else {}
    return {
        "name": model,
        "at": at.isoformat(),
        "aliases": found.get("aliases", {}),
        "generation": found.get("generation", 0),
        **{key: found.get(key) for key in ("when", "who", "why")},
    }


def parse_time(text: str) -> datetime:
    """Parses a time in ISO 8601; one without a zone is in UTC.

    Raises:
        ValueError: it is none.
    """
    try:
        if len(text) > MAX_TIME_CHARACTERS:
            raise ValueError(f"it has over {MAX_TIME_CHARACTERS} characters")
        return zoned(datetime.fromisoformat(text)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text[:MAX_TIME_CHARACTERS]!r} is no time; write it in ISO 8601, as in "
            "2026-11-01T12:00, with a zone (Z or +01:00, in a URL %2B01:00) unless it is UTC"
        ) from error


def zoned(when: datetime) -> datetime:
    """Returns a time with a zone: UTC for one without."""
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _generations(store: ModelStore, model: str) -> tuple[int, ...]:
    """Returns the generations of a model, ascending.

    Raises:
        ModelNotFoundError: it has no version.
    """
    store.versions(model)
    return store.listing(model).get(model, ModelListing()).generations
