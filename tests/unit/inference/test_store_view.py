"""The listing that a process serves: the store's, or the last known one at its start."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model_store.cache.cached_store import CachedStore
from model_store.errors import StorageError
from model_store.listing import ModelListing
from model_store.storage.storage import MissingFileError
from model_store.store import ModelStore
from services.inference import store_view
from services.inference.config import InferenceConfig
from services.inference.store_view import StoreView, serving_store
from services.telemetry.metrics import Metrics

KNOWN = {"m": ModelListing((1,), (1,), (1,))}
NOW = {"m": ModelListing((1, 2), (1, 2), (1, 2))}


class Away(CachedStore):
    """A store that answers as the test says.

    Attributes:
        outcome: listing, or the error that listing raises.
        known: last known listing.
        answers: set if it answers.
        asked: number of listings that were asked of it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__("s3://bucket", folder, 2**20, lambda _: None)
        self.outcome: dict[str, ModelListing] | Exception = StorageError("refused")
        self.known: dict[str, ModelListing] | None = KNOWN
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def listing(self, model: str | None = None) -> dict[str, ModelListing]:
        self.asked += 1
        assert self.answers.wait(20)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def last_listing(self) -> dict[str, ModelListing] | None:
        return self.known


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Away:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return Away(tmp_path)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("test")


@pytest.fixture
def view(store: Away, metrics: Metrics) -> StoreView:
    return StoreView(store, metrics)


@pytest.fixture
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as tasks:
        yield tasks


def is_from_cache(metrics: Metrics) -> bool:
    return metrics.registry.get_sample_value("flambeau_served_from_cache") == 1


async def until_listed(view: StoreView, tasks: asyncio.TaskGroup) -> None:
    """Makes passes until the store has answered."""
    while await view.listings(tasks) != NOW:
        assert view.asked is not None
        await asyncio.wait([view.asked])


async def test_a_store_that_answers_is_served(
    store: Away, view: StoreView, tasks: asyncio.TaskGroup, metrics: Metrics
) -> None:
    store.outcome = NOW
    assert await view.listings(tasks) == NOW
    assert (view.notice, view.take_return(), is_from_cache(metrics)) == ("", False, False)
    store.outcome = StorageError("refused")  # after the start, what is loaded stays
    with pytest.raises(StorageError, match="refused"):
        await view.listings(tasks)


async def test_a_store_that_fails_is_served_from_the_cache_until_it_answers(
    store: Away, view: StoreView, tasks: asyncio.TaskGroup, metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for _ in range(3):
        assert await view.listings(tasks) == KNOWN
    assert "the store has been away since" in view.notice
    assert is_from_cache(metrics)
    assert store.asked > 1  # again, beside the passes
    assert [record.message for record in caplog.records] == [
        "store is away; serving from the cache"
    ]
    store.outcome = NOW
    await until_listed(view, tasks)
    assert (view.notice, is_from_cache(metrics)) == ("", False)
    assert [view.take_return(), view.take_return()] == [True, False]


async def test_a_store_that_does_not_answer_in_time_is_away(
    store: Away, view: StoreView, tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_view, "AWAY_AFTER_S", 0.01)
    store.answers.clear()
    store.outcome = NOW
    for _ in range(3):
        assert await view.listings(tasks) == KNOWN
    assert store.asked == 1
    store.answers.set()
    await until_listed(view, tasks)
    assert store.asked == 1


@pytest.mark.parametrize("is_slow", [False, True])
async def test_without_anything_known_the_start_waits_for_the_store(
    store: Away, view: StoreView, tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch,
    is_slow: bool,
) -> None:  # fmt: skip
    store.known = None
    with pytest.raises(StorageError, match="refused"):
        await view.listings(tasks)
    store.outcome = NOW
    if is_slow:
        monkeypatch.setattr(store_view, "AWAY_AFTER_S", 0.01)
        store.answers.clear()
        asyncio.get_running_loop().call_later(0.05, store.answers.set)
    assert await view.listings(tasks) == NOW
    assert not view.take_return()


async def test_a_bucket_that_does_not_exist_is_not_away(
    store: Away, view: StoreView, tasks: asyncio.TaskGroup
) -> None:
    store.outcome = MissingFileError("no such bucket")
    with pytest.raises(MissingFileError):
        await view.listings(tasks)
    assert view.notice == ""


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("url", "cache", "is_cached"),
    [("s3://bucket/models", "cache", True), ("s3://bucket", "", False), ("store", "cache", False)],
)
def test_a_bucket_has_a_cache_and_a_folder_has_none(
    metrics: Metrics, tmp_path: Path, url: str, cache: str, is_cached: bool
) -> None:
    place = url if "://" in url else str(tmp_path / url)
    folder = str(tmp_path / cache) if cache else ""
    found = {"queue": "redis://127.0.0.1", "store": place, "store_cache": folder}
    config = InferenceConfig.model_validate(found)
    plain = ModelStore(str(tmp_path / "opened"))
    served = serving_store(config, plain, metrics)
    assert isinstance(served, CachedStore) is is_cached
    assert (served is plain) is not is_cached
