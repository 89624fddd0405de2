"""Webhooks of events, told by the servers of one store to a real receiver."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from model_store.records.events import EventScan
from model_store.store import ModelStore
from services.registry import event_feed, event_webhooks
from services.registry.event_feed import EventFeed
from services.registry.event_webhooks import Claim, EventWebhooks, WebhookTargets, claim_path
from services.webhook_calls import WebhookCalls
from tests.fixtures.redis_servers import until
from tests.fixtures.store_versions import publish_in
from tests.fixtures.webhook_receiver import SECRET, Receiver

TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "SETTLE_S", 0.05)
    monkeypatch.setattr(event_feed, "SIGN_OF_LIFE_S", 0.1)


@pytest.fixture
def place(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "registry"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(500, 404) as receiver:
        yield receiver


@contextlib.asynccontextmanager
async def server(store: ModelStore, url: str) -> AsyncIterator[None]:
    """Runs the feed and the webhooks of one server."""
    feed = EventFeed(ModelStore(store.url), asyncio.to_thread, 0.02)
    targets = WebhookTargets((url,), WebhookCalls(SECRET))
    webhooks = EventWebhooks(feed, store.storage, targets, asyncio.to_thread, (0, 0.01, 0.01))
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
