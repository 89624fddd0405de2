"""Reasons for which a model of the store is not served."""

from datetime import UTC, datetime

import pytest

from model_store.listing import ModelListing
from model_store.pointers import PRODUCTION, Pointers
from services.inference.loading.unserved_models import refusal
from services.queueing.records import Lane, ServedVersion

THERE = ModelListing(versions=(1, 2), generations=(1,))
UNREADABLE = ModelListing(unreadable="permission denied")


def production(version: int) -> Pointers:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Pointers(generation=1, aliases={PRODUCTION: version}, who="w", when=now, why="test")


@pytest.mark.parametrize(
    ("listing", "target", "states", "reason"),
    [
        (THERE, 2, {}, ""),
        (THERE, 2, {2: "loading"}, ""),
        (THERE, 2, {1: "failed", 2: "ready"}, ""),
        (THERE, 2, {1: "ready", 2: "failed"}, "version 2 (production) was refused: it is bad"),
        (THERE, 3, {2: "ready"}, "production points to version 3, which the store does not have"),
        (THERE, None, {}, "its pointers are unreadable, so its production version is unknown"),
        (ModelListing(versions=(1, 2)), None, {1: "failed", 2: "ready"}, ""),
        (
            ModelListing(versions=(1, 2)),
            None,
            {2: "failed", 1: "failed"},
            "version 1 was refused: it is bad; version 2 was refused: it is bad",
        ),
        (UNREADABLE, None, {1: "failed"}, "permission denied"),
        (UNREADABLE, None, {1: "failed", 2: "ready"}, ""),
    ],
)
def test_refusal_of_a_model(
    listing: ModelListing, target: int | None, states: dict[int, str], reason: str
) -> None:
    known = [
        ServedVersion(lane=Lane("m", number), state=state, reason="it is bad")  # type: ignore[arg-type]
        for number, state in states.items()
    ]
    assert refusal(listing, None if target is None else production(target), known) == reason
