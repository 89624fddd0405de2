"""Webhooks of events, told by the servers of one store to a real receiver."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from model_store.host.this_user import this_user
from model_store.records.events import EventScan
from model_store.store import ModelStore
from services.registry import event_feed, event_webhooks
from services.registry.event_feed import EventFeed
from services.registry.event_webhooks import (
    Claim,
    EventWebhooks,
    WebhookTargets,
    claim_path,
    shown_url,
)
from services.webhook_calls import WebhookCalls
from tests.fixtures.redis_servers import until
from tests.fixtures.store_versions import publish_in
from tests.fixtures.webhook_receiver import SECRET, Receiver

TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "SETTLE_S", 0.05)
    monkeypatch.setattr(event_webhooks, "LOOK_EVERY_S", 0.1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(500, 404) as receiver:
        yield receiver


@contextlib.asynccontextmanager
async def server(
    store: ModelStore, url: str, pauses_s: tuple[float, ...] = (0, 0.01, 0.01)
) -> AsyncIterator[None]:
    """Runs the feed and the webhooks of one server."""
    feed = EventFeed(ModelStore(store.url), asyncio.to_thread, 0.02)
    targets = WebhookTargets((url,), WebhookCalls(SECRET))
    webhooks = EventWebhooks(feed, store.storage, targets, asyncio.to_thread, pauses_s)
    tasks = [asyncio.create_task(one.run()) for one in (feed, webhooks)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def states(store: ModelStore) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in Path(store.url, ".events/webhooks").iterdir():
        claim = Claim.model_validate_json(file.read_bytes())
        found[file.name.rpartition(".")[0].rpartition(".")[0]] = claim.state
    return found


async def until_delivered(store: ModelStore, count: int) -> None:
    await until(lambda: list(states(store).values()).count("delivered") >= count, TIMEOUT_S)


async def test_several_servers_tell_an_event_once_and_again_until_it_is_heard(
    place: ModelStore, folder: Path, receiver: Receiver
) -> None:
    publish_in(place, folder)
    async with server(place, receiver.url), server(place, receiver.url):
        first = [await receiver.call() for _ in range(3)]
        (one,) = {told for told, _ in first}
        assert first[0][1]["type"] == "registry.pushed"
        assert first[0][1]["data"] == {
            "id": one, "kind": "pushed", "model": "digits", "version": 1,
            "at": first[0][1]["timestamp"], "semver": first[0][1]["data"]["semver"],
            "who": this_user(), "why": "",
        }  # fmt: skip
        place.promote("digits", 1, why="ready", who="ada")
        other, document = await receiver.call()
        assert document["type"] == "registry.promoted"
        assert (document["data"]["who"], document["data"]["why"]) == ("ada", "ready")
        await until_delivered(place, 2)
        for alias in ("staging", "canary", "staging"):
            place.promote("digits", 1, alias)
        await until_delivered(place, 4)
    told = [other]
    while not receiver.calls.empty():
        told.append((await receiver.call())[0])
    assert len(told) == len(set(told)) == 3  # a third move changed nothing
    assert states(place).keys() == {one, *told}


async def test_a_server_that_comes_later_tells_what_was_not_told(
    place: ModelStore, folder: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim is of a server that has ended, one is new, and one event has none."""
    monkeypatch.setattr(event_webhooks, "CLAIM_S", 600.0)
    for _ in range(3):
        publish_in(place, folder)
    old, new, none = (one.id for one in EventScan(place).events())
    for event_id, at_s in ((old, 1.0), (new, 4e9)):
        data = Claim(state="claimed", at_s=at_s).model_dump_json().encode()
        place.storage.create(claim_path(event_id, receiver.url), data)
    async with server(place, receiver.url):
        await until_delivered(place, 2)
    assert states(place) == {old: "delivered", new: "claimed", none: "delivered"}


async def test_a_receiver_that_never_hears_is_given_up_by_name(
    place: ModelStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_in(place, folder)
    with Receiver(*[500] * 10) as deaf:
        async with server(place, deaf.url):
            for _ in range(3):
                await deaf.call()
            await until(lambda: "failed" in states(place).values(), TIMEOUT_S)
    (error,) = [one for one in caplog.records if one.message == "webhook aborted"]
    assert vars(error)["status"] == 500
    assert deaf.calls.empty()


async def test_claims_of_old_events_are_removed(
    place: ModelStore, folder: Path, receiver: Receiver
) -> None:
    path = claim_path("1" * 16 + ".manifest.1.digits", receiver.url)
    place.storage.create(path, Claim(state="delivered", at_s=1).model_dump_json().encode())
    async with server(place, receiver.url):
        publish_in(place, folder)
        await until_delivered(place, 1)
        await until(lambda: not place.storage.has(path), TIMEOUT_S)


async def test_a_busy_store_does_not_delay_what_ended_servers_left(
    place: ModelStore, folder: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No silence of the feed lasts as long as its sign of life here."""
    monkeypatch.setattr(event_webhooks, "CLAIM_S", 0.5)
    publish_in(place, folder)
    (event,) = EventScan(place).events()
    data = Claim(state="claimed", at_s=time.time() + 0.5, owner="ended").model_dump_json()
    place.storage.create(claim_path(event.id, receiver.url), data.encode())
    async with server(place, receiver.url):
        told, _ = await receiver.call()
    assert told == event.id


async def test_no_event_is_forgotten_where_few_are_looked_at_later(
    place: ModelStore, folder: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_webhooks, "MAX_LATER", 1)
    monkeypatch.setattr(event_webhooks, "CLAIM_S", 0.5)
    for _ in range(3):
        publish_in(place, folder)
    for event in EventScan(place).events():
        data = Claim(state="claimed", at_s=time.time() + 0.5, owner="ended").model_dump_json()
        place.storage.create(claim_path(event.id, receiver.url), data.encode())
    async with server(place, receiver.url):
        await until_delivered(place, 3)


async def test_an_event_that_is_old_by_its_turn_is_not_told(
    place: ModelStore, folder: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_webhooks, "MAX_LATER", 1)
    for _ in range(2):
        publish_in(place, folder)
    hour_ago = time.time() - 3600
    os.utime(Path(place.url, "digits/1/manifest.json"), (hour_ago, hour_ago))
    old, new = (one.id for one in EventScan(place).events())
    async with server(place, receiver.url):
        await asyncio.sleep(0)  # it has begun, with events of a day
        monkeypatch.setattr(event_webhooks, "MAX_AGE_S", 60.0)
        told = {(await receiver.call())[0] for _ in range(3)}
        await until_delivered(place, 1)
    assert told == {new}
    assert receiver.calls.empty()
    assert not place.storage.has(claim_path(old, receiver.url))


async def test_a_claim_is_renewed_before_each_call(
    place: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_webhooks, "RENEW_S", 0.0)
    monkeypatch.setattr(event_webhooks, "CLAIM_S", 0.6)
    publish_in(place, folder)
    with Receiver(500, 500, 500) as deaf:
        pauses_s = (0.0, 0.4, 0.4, 0.4)
        async with server(place, deaf.url, pauses_s), server(place, deaf.url, pauses_s):
            for _ in range(4):
                await deaf.call()
            await until_delivered(place, 1)
        assert deaf.calls.empty()


async def test_a_server_whose_claim_was_taken_over_calls_no_more(
    place: ModelStore, folder: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(event_webhooks, "RENEW_S", 0.0)
    publish_in(place, folder)
    (event,) = EventScan(place).events()
    with Receiver(*[500] * 9) as deaf:
        path = claim_path(event.id, deaf.url)
        async with server(place, deaf.url, (0.0, 0.2)):
            await deaf.call()
            other = Claim(state="claimed", at_s=time.time(), owner="other").model_dump_json()
            place.storage.replace(path, other.encode())
            await until(
                lambda: "a webhook was taken over" in [one.message for one in caplog.records],
                TIMEOUT_S,
            )
        assert deaf.calls.empty()
        assert Claim.model_validate_json(place.storage.get(path, 9999)).owner == "other"


def test_a_url_is_logged_without_its_path_and_credentials() -> None:
    shown = shown_url("https://me:word@hooks.example.org:8443/T0/secret?key=secret")
    assert shown.startswith("https://hooks.example.org:8443/#")
    assert "secret" not in shown
    assert "word" not in shown
