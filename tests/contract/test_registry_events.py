"""Events of a store, by two feeds that know nothing of each other, as two servers have them."""

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC
from pathlib import Path
from random import Random
from typing import Any

import pytest

from model_store.approvals.asked_move import AskedMove, started
from model_store.approvals.request_store import ask, refuse
from model_store.document import SMALL
from model_store.errors import ConflictError
from model_store.host.this_user import this_user
from model_store.records import events as events_module
from model_store.records.annotations import annotate
from model_store.records.deletion import delete_version
from model_store.records.events import EventScan, event_document, event_of, first_after
from model_store.rollouts import rollout_store
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.rollouts.traffic import Arm
from model_store.store import ModelStore
from protos.flambeau.v1 import registry_pb2 as pb
from services.errors import (
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
    StoreUnavailableError,
    TooManyInFlightError,
    UnauthenticatedError,
    UnreadAnswersError,
)
from services.registry import event_feed
from services.registry.event_feed import Event, EventCaller, EventFeed
from services.registry.grpc_messages import event_message
from tests.fixtures.store_versions import publish_in, rollback

TIMEOUT_S = 30
ALL = EventCaller("key:all", lambda _: True, lambda: False)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "SETTLE_S", 0.05)


@contextlib.asynccontextmanager
async def running_feed(store: ModelStore) -> AsyncIterator[EventFeed]:
    feed = EventFeed(ModelStore(store.url), asyncio.to_thread, 0.02)
    task = asyncio.create_task(feed.run())
    yield feed
    task.cancel()


async def next_event(events: AsyncGenerator[Event | None, None]) -> Event:
    async with asyncio.timeout(TIMEOUT_S):
        async for event in events:
            if event is not None:
                return event
    raise AssertionError("the stream ended")


async def take(events: AsyncGenerator[Event | None, None], count: int) -> list[Event]:
    return [await next_event(events) for _ in range(count)]


def happenings(store: ModelStore, folder: Path) -> None:
    """Two versions are pushed, promoted and annotated; one is rolled back, and one deleted."""
    for _ in range(3):
        publish_in(store, folder)
    store.promote("digits", 1, why="first", who="ada")
    store.promote("digits", 2, why="better", who="ada")
    rollback(store, "digits", why="worse", who="eve")
    annotate(store.storage, "digits", 2, "ada", "a note")
    annotate(store.storage, "digits", None, "ada", "a note")
    delete_version(store, "digits", 3, who="eve", why="old")


def told(event: Event) -> tuple[Any, ...]:
    found = event.document
    return found["kind"], found["version"], found.get("who", ""), found.get("why", "")


EXPECTED = [
    ("pushed", 1, this_user(), ""),
    ("pushed", 2, this_user(), ""),
    ("promoted", 1, "ada", "first"),
    ("promoted", 2, "ada", "better"),
    ("rolled_back", 1, "eve", "worse"),
    ("annotated", 2, "ada", ""),
    ("annotated", None, "ada", ""),
    ("deleted", 3, "eve", "old"),
]


async def test_two_servers_tell_the_same_events_in_order(place: ModelStore, folder: Path) -> None:
    async with running_feed(place) as one, running_feed(place) as other:
        live = one.read(ALL, "")
        assert await anext(live) is None
        await asyncio.to_thread(happenings, place, folder)
        found = await take(other.read(ALL, "0"), len(EXPECTED))
        assert [told(event) for event in found] == EXPECTED
        assert [event.id for event in found] == sorted(event.id for event in found)
        seen = [await next_event(live)]
        while seen[-1].id != found[-1].id:
            seen.append(await next_event(live))
        # The third version was there for a moment, and may have been seen.
        assert [e for e in seen if told(e)[:2] != ("pushed", 3)] == found
        for number, event in enumerate(found[:-1]):
            rest = one.read(ALL, event.id)
            assert await take(rest, len(found) - number - 1) == found[number + 1 :]


async def test_a_request_for_a_move_is_told(place: ModelStore, folder: Path) -> None:
    for _ in range(2):
        publish_in(place, folder)
    place.promote("digits", 1)
    promotion = AskedMove(act="promote", version=2, why="better")
    for move in (promotion, started(ShadowRequest(version=2))):
        ask(place, "digits", move, "key:ann")
    refuse(place, "digits", 1, "key:ben")
    async with running_feed(place) as feed:
        _, _, _, event, shadow = await take(feed.read(ALL, "0"), 5)
    assert told(event) == ("asked", 2, "key:ann", "better")
    facts = [event.document[name] for name in ("request", "act", "alias")]
    assert facts == [1, "promote", "production"]
    assert event.document["until"] > event.document["at"]
    assert event.id.endswith(".request.1.digits")
    assert told(shadow) == ("asked", 2, "key:ann", "")
    assert (shadow.document["request"], shadow.document["act"]) == (2, "shadow start")
    message = event_message(event.document)
    assert (message.kind, message.request) == (pb.RegistryEvent.KIND_ASKED, 1)
    assert message.until.ToDatetime(UTC).isoformat() == event.document["until"]


async def test_a_promotion_names_its_changes(place: ModelStore, folder: Path) -> None:
    publish_in(place, folder)
    place.promote("digits", 1, "canary")
    async with running_feed(place) as feed:
        _, event = await take(feed.read(ALL, "0"), 2)
    assert event.document["changes"] == [{"alias": "canary", "from": None, "to": 1}]
    assert event.document["generation"] == 1
    assert event.id.endswith(".pointers.1.digits")


async def test_a_reader_sees_the_models_that_it_may_read(place: ModelStore, folder: Path) -> None:
    for model in ("digits", "linear"):
        publish_in(place, folder, model)
    mine = EventCaller("key:a", lambda model: model == "linear", lambda: False)
    async with running_feed(place) as feed:
        assert (await next_event(feed.read(mine, "0"))).document["model"] == "linear"


async def test_a_slow_reader_is_cut_off_by_name(
    place: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "MAX_BEHIND", 3)
    async with running_feed(place) as feed:
        slow = feed.read(ALL, "")
        await anext(slow)
        quick = feed.read(ALL, "0")
        publish_in(place, folder)
        await next_event(quick)
        await next_event(slow)
        for _ in range(4):
            publish_in(place, folder)
            await next_event(quick)
        with pytest.raises(UnreadAnswersError, match="go on after the last one"):
            await next_event(slow)


async def test_readers_are_limited(place: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_READERS", 3)
    monkeypatch.setattr(event_feed, "MAX_READERS_OF_ONE", 2)
    async with running_feed(place) as feed:
        mine = [feed.read(ALL, "") for _ in range(2)]
        for reader in mine:
            await anext(reader)
        with pytest.raises(TooManyInFlightError, match="2 of them yours"):
            await anext(feed.read(ALL, ""))
        other = ALL._replace(name="key:other")
        third = feed.read(other, "")
        await anext(third)
        with pytest.raises(TooManyInFlightError):
            await anext(feed.read(other, ""))
        for reader in (*mine, third):
            await reader.aclose()
        await anext(feed.read(ALL, ""))


async def test_a_stream_ends_with_its_server_or_its_credential(
    place: ModelStore, folder: Path
) -> None:
    over = threading.Event()
    async with running_feed(place) as feed:
        ended = feed.read(ALL._replace(is_over=over.is_set), "0")
        await anext(ended)
        over.set()
        publish_in(place, folder)
        with pytest.raises(UnauthenticatedError):
            await next_event(ended)
        open_one = feed.read(ALL, "")
        await anext(open_one)
        feed.leave()
        with pytest.raises(ShuttingDownError):
            await next_event(open_one)
        with pytest.raises(ShuttingDownError):
            await anext(feed.read(ALL, ""))


@pytest.mark.parametrize("after", ["x", "-1", "1.2", "9" * 17, "1" * 16 + ".pushed.1.a/b", "é"])
async def test_what_is_no_id_is_refused(place: ModelStore, after: str) -> None:
    feed = EventFeed(place, asyncio.to_thread)
    with pytest.raises(InvalidRequestError, match="give the id of an event"):
        await anext(feed.read(ALL, after))


async def test_events_that_are_not_kept_are_told_as_such(
    place: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (events_module, event_feed):
        monkeypatch.setattr(module, "MAX_KEPT", 2)
    for _ in range(4):
        publish_in(place, folder)
    async with running_feed(place) as feed:
        kept = await take(feed.read(ALL, "0"), 2)
        assert [event.document["version"] for event in kept] == [3, 4]
        with pytest.raises(InvalidRequestError, match=f"events before {kept[0].id}"):
            await take(feed.read(ALL, "1"), 1)


def test_ids_are_read_back(place: ModelStore, folder: Path) -> None:
    happenings(place, folder)
    found = EventScan(place).events()
    assert [event_of(one.id) for one in found] == found
    assert found == sorted(found)
    for before, event in itertools.pairwise(found):
        assert before < first_after(before.id) <= event


def test_a_scan_reads_only_what_has_changed(
    place: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happenings(place, folder)
    long_ago = time.time() - 100
    for found, _, _ in os.walk(place.url):
        os.utime(found, (long_ago, long_ago))
    scan = EventScan(place)
    before = scan.events()
    names, looked = place.storage.names, []

    def listing(path: str = "") -> Any:
        looked.append(path)
        return names(path)

    monkeypatch.setattr(place.storage, "names", listing)
    assert scan.events() is before
    assert looked == [""]
    version = publish_in(place, folder)
    assert [one.number for one in scan.events() if one not in before] == [version]


def test_a_store_of_any_kind_has_the_same_events(store: ModelStore, folder: Path) -> None:
    happenings(store, folder)
    found = {(one.record, one.number, one.model) for one in EventScan(store).events()}
    assert found == {
        ("manifest", 1, "digits"), ("manifest", 2, "digits"), ("tombstone", 3, "digits"),
        *(("pointers", generation, "digits") for generation in range(1, 5)),
        ("annotations", 0, "digits"), ("annotations", 2, "digits"),
    }  # fmt: skip


def test_a_damaged_record_tells_nothing(place: ModelStore, folder: Path) -> None:
    happenings(place, folder)
    for file in ("pointers/00000002.json", "1/manifest.json", "annotations/2.json"):
        Path(place.url, "digits", file).write_text("{")
    documents = [event_document(place, one) for one in EventScan(place).events()]
    assert [one["kind"] for one in documents if one is not None] == [
        "pushed", "promoted", "annotated", "deleted"
    ]  # fmt: skip


async def test_the_loop_turns_while_kept_events_are_told(place: ModelStore) -> None:
    """The documents of all events are known, so nothing else suspends the reader."""
    for number in range(4 * event_feed.EVENTS_AT_ONCE):
        annotate(place.storage, "digits", number or None, "ada", "a note")
    async with running_feed(place) as feed:
        events = feed.read(ALL, "0")
        told = await take(events, 4 * event_feed.EVENTS_AT_ONCE)
        turns = itertools.count()

        def turn() -> None:
            next(turns)
            asyncio.get_running_loop().call_soon(turn)

        again = feed.read(ALL, "0")
        assert await next_event(again) == told[0]
        turn()
        before = next(turns)
        assert await take(again, len(told) - 1) == told[1:]
        assert next(turns) - before > 3
        for reader in (events, again):
            await reader.aclose()


async def test_a_stream_outlasts_a_failure_of_the_store(
    place: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "READ_AGAIN_S", 0.01)
    monkeypatch.setattr(event_feed, "SETTLE_S", 0.0)
    publish_in(place, folder)
    failures = iter([StoreUnavailableError("gone"), OverloadedError("busy")])
    calls = itertools.count()

    async def in_thread(work: Callable[[], Any]) -> Any:
        if next(calls) and (error := next(failures, None)) is not None:  # after the first scan
            raise error
        return await asyncio.to_thread(work)

    feed = EventFeed(place, in_thread, 1000)
    task = asyncio.create_task(feed.run())
    assert (await next_event(feed.read(ALL, "0"))).document["version"] == 1
    task.cancel()


def test_a_record_over_the_limit_of_its_size_tells_nothing(place: ModelStore, folder: Path) -> None:
    happenings(place, folder)
    for file in ("annotations/2.json", "tombstones/00000003.json"):
        Path(place.url, "digits", file).write_bytes(b" " * (SMALL.max_bytes + 1))
    documents = [event_document(place, one) for one in EventScan(place).events()]
    assert [one["kind"] for one in documents if one is not None] == [
        "pushed", "pushed", "promoted", "promoted", "rolled_back", "annotated"
    ]  # fmt: skip


def test_a_scan_of_changes_finds_what_a_new_one_does(
    place: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Insertions, removals and merges, with more events than are kept."""
    monkeypatch.setattr(events_module, "MAX_KEPT", 30)
    monkeypatch.setattr(events_module, "MOST_INSERTED", 5)
    random, scan = Random(7), EventScan(place)
    for _ in range(40):
        for _ in range(random.choice((0, 1, 3, 9))):
            model, number = f"m{random.randrange(4)}", random.randrange(1, 12)
            match random.randrange(3):
                case 0:
                    annotate(place.storage, model, number, "ada", "a note")
                case 1:
                    with contextlib.suppress(ConflictError):  # it is there
                        place.storage.create(f"{model}/{number}/manifest.json", b"{}")
                case 2:
                    place.storage.delete(f"{model}/annotations/{number}.json")
        found = scan.events()
        assert found == EventScan(place).events()
        assert found == sorted(found)
        assert scan.events() is found


def test_moves_of_traffic_without_a_move_of_an_alias_are_told(
    place: ModelStore, folder: Path
) -> None:
    for _ in range(2):
        publish_in(place, folder)
    place.promote("digits", 1)
    wanted = RolloutRequest.model_validate({"version": 2, "why": "better"})
    rollout_store.start_rollout(place, "digits", wanted, "ada")
    rollout_store.pause_rollout(place, "digits", "lunch")
    rollout_store.resume_rollout(place, "digits", "fed")
    rollout_store.abort_rollout(place, "digits", "guard broken")
    shadow = ShadowRequest(version=2, sample=0.5)
    rollout_store.start_shadow(place, "digits", shadow)
    rollout_store.stop_shadow(place, "digits", "seen")
    arms = (Arm(version=1, share=0.5), Arm(version=2, share=0.5))
    rollout_store.start_split(place, "digits", SplitRequest(name="ab", arms=arms))
    rollout_store.end_split(place, "digits", "done")
    place.set_aliases("digits", {"production": 1})
    documents = [event_document(place, one) for one in EventScan(place).events()]
    told = [one for one in documents if one is not None and one["kind"] != "pushed"]
    assert [one["kind"] for one in told] == ["promoted", *["traffic"] * 8]
    assert [one["version"] for one in told] == [1, 2, 2, 2, 2, 2, 2, None, None]
    assert [one["why"] for one in told][1:5] == [
        "better",
        "lunch",
        "fed",
        "guard broken",
    ]
    message = event_message(told[4])
    assert message.kind == pb.RegistryEvent.KIND_TRAFFIC
    assert (message.version, message.why, message.generation) == (2, "guard broken", 5)
    assert event_message(told[-1]).version == 0
