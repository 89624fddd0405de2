"""Promotions of an alias that names nothing yet, of which one succeeds, on stores of every kind."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from model_store.approvals.asked_move import AskedMove
from model_store.approvals.made_move import make_move
from model_store.approvals.request_store import approve, ask
from model_store.errors import ApprovalError, ConflictError, StalePointerError
from model_store.pointers import Pointers
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in


@pytest.fixture
def store(store: ModelStore, folder: Path) -> ModelStore:
    """Returns a store with digits 1 to 4, and no alias."""
    for _ in range(4):
        publish_in(store, folder)
    return store


def first(version: int, alias: str = "production") -> AskedMove:
    return AskedMove(act="promote", alias=alias, version=version, first=True)


def test_an_alias_that_names_a_version_is_not_moved(store: ModelStore) -> None:
    assert make_move(store, "digits", first(1)).pointers.aliases == {"production": 1}
    with pytest.raises(StalePointerError, match="'production' of 'digits' names version 1 already"):
        make_move(store, "digits", first(2))
    assert make_move(store, "digits", first(1)).pointers.generation == 1, "a repeat moves nothing"
    moved = make_move(store, "digits", first(2, "canary")).pointers
    assert (moved.generation, moved.aliases) == (2, {"production": 1, "canary": 2})


def test_one_of_many_first_moves_wins(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have read that the alias names nothing before one of them writes."""
    versions = range(1, 5)
    all_have_looked, look = Barrier(len(versions), timeout=30), ModelStore.pointers

    def look_and_wait(self: ModelStore, model: str) -> Pointers | None:
        found = look(self, model)
        all_have_looked.wait()
        return found

    def move(version: int) -> bool:
        try:
            make_move(store, "digits", first(version))
        except ConflictError:
            return False
        return True

    with monkeypatch.context() as together, ThreadPoolExecutor(len(versions)) as pool:
        together.setattr(ModelStore, "pointers", look_and_wait)
        won = list(pool.map(move, versions))
    assert sum(won) == 1
    (made,) = store.history("digits")
    assert made.aliases == {"production": versions[won.index(True)]}


def test_a_first_move_that_waits_for_the_second_person_is_made_once(store: ModelStore) -> None:
    requests = [ask(store, "digits", first(version), "key:ann") for version in (1, 2)]
    assert approve(store, "digits", requests[0].number, "key:ben").aliases == {"production": 1}
    with pytest.raises((StalePointerError, ApprovalError)):
        approve(store, "digits", requests[1].number, "key:ben")


def test_other_moves_are_stored_as_older_processes_read_them() -> None:
    assert "first" not in AskedMove(act="promote", version=1).model_dump()
    assert first(1).model_dump()["first"] is True
    assert AskedMove.model_validate_json(first(1).model_dump_json()) == first(1)
