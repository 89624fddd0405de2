"""Moves of aliases: the differences of generations, and the state at a time."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_store.errors import HistoryTooLongError, ModelNotFoundError
from model_store.pointers import Pointers
from model_store.records.moves import (
    Change,
    Move,
    changes_between,
    moves_page,
    parse_time,
    pointers_when,
)
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

ALIASES = st.dictionaries(st.sampled_from(["canary", "production", "beta"]), st.integers(1, 9))
START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    found = ModelStore(str(tmp_path / "store"))
    publish_in(found, tmp_path / "draft")
    return found


def write(store: ModelStore, hours: list[int], zones: bool = False) -> list[Pointers]:
    """Writes generations at these hours; returns them, the oldest first."""
    written = []
    for number, hour in enumerate(hours, 1):
        when = START + timedelta(hours=hour)
        if zones:
            when = when.astimezone(timezone(timedelta(hours=number % 5)))
        pointers = Pointers(
            generation=number, aliases={"production": number}, who="ann", when=when, why=""
        )
        path = f"digits/pointers/{number:08d}.json"
        store.storage.delete(path)
        store.storage.create(path, pointers.to_json())
        written.append(pointers)
    return written


@given(before=ALIASES, after=ALIASES)
def test_the_changes_lead_from_one_generation_to_the_next(
    before: dict[str, int], after: dict[str, int]
) -> None:
    found = dict(before)
    for change in changes_between(before, after):
        assert change.before == before.get(change.alias)
        assert change.before != change.after
        if change.after is None:
            del found[change.alias]
        else:
            found[change.alias] = change.after
    assert found == after


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(hours=st.lists(st.integers(0, 6), min_size=6, max_size=6), asked=st.integers(-1, 7))
def test_the_state_at_a_time_is_of_the_last_generation_that_is_not_later(
    store: ModelStore, hours: list[int], asked: int
) -> None:
    """Clocks may go backwards: the order is that of the numbers."""
    written = write(store, hours, zones=True)
    expected = [one.generation for one, hour in zip(written, hours, strict=True) if hour <= asked]
    found = pointers_when(store, "digits", START + timedelta(hours=asked))
    assert (found.generation if found else 0) == max(expected, default=0)


def test_a_time_without_a_zone_in_the_store_is_in_utc(store: ModelStore) -> None:
    (pointers,) = write(store, [1])
    path = "digits/pointers/00000001.json"
    store.storage.replace(path, pointers.to_json().replace(b"T01:00:00Z", b"T01:00:00"))
    assert store.history("digits")[0].when.tzinfo is None
    assert pointers_when(store, "digits", START) is None
    assert pointers_when(store, "digits", START + timedelta(hours=1)) is not None


def test_pages_of_moves_join_to_all_of_them(store: ModelStore) -> None:
    write(store, [0, 1, 2, 3, 4])
    whole = moves_page(store, "digits", 100)
    assert [move.pointers.generation for move in whole.moves] == [5, 4, 3, 2, 1]
    assert whole.moves[-1].changes == (Change("production", None, 1),)
    assert whole.moves[0].changes == (Change("production", 4, 5),)
    joined: list[Move] = []
    before = None
    for _ in range(3):
        page = moves_page(store, "digits", 2, before)
        joined += page.moves
        before = page.next
    assert (tuple(joined), before) == (whole.moves, None)
    with pytest.raises(ModelNotFoundError):
        moves_page(store, "letters", 2)


def test_the_generations_that_a_call_reads_are_limited(store: ModelStore) -> None:
    write(store, [1, 2, 3])
    assert pointers_when(store, "digits", START, 3) is None
    found = pointers_when(store, "digits", START + timedelta(hours=2), 2)
    assert found is not None
    assert found.generation == 2
    with pytest.raises(HistoryTooLongError, match="has had 2 moves since 2026-11-01 00:00"):
        pointers_when(store, "digits", START, 2)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5)), None])))
def test_times_are_read_back(when: datetime) -> None:
    expected = when if when.tzinfo else when.replace(tzinfo=UTC)
    try:
        found = parse_time(when.isoformat())
    except ValueError:
        assert not timedelta(days=1) < expected - datetime.min.replace(tzinfo=UTC)
        return
    assert (found, found.tzinfo) == (expected, UTC)


@given(st.text(max_size=80))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    message = ""
    try:
        assert parse_time(text).tzinfo is UTC
    except ValueError as error:
        message = str(error)
    assert not message or "is no time" in message
