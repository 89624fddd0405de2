"""A store whose folder is missing while processes have it open: nothing creates the folder again.

An unmounted volume leaves an empty folder, or none. A file in its place would be a store that has
one model, and servers would unload all others.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import StorageError, StoreGoneError
from model_store.records.annotations import annotate
from model_store.rollouts.traffic import Arm, Split, Traffic
from model_store.storage.mounted_folder import FolderIdentity, folder_argument, known_folder
from model_store.store import ModelStore
from services.access.caller import Principal
from services.errors import StoreUnavailableError
from services.registry.event_feed import Event, EventCaller, EventFeed
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from services.rollouts.comparison_files import write_comparisons
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence_files import EvidenceFiles
from services.rollouts.lease import Lease
from tests.fixtures.store_versions import draft_in, publish_in
from tests.fixtures.uploads import declared, send_missing, uploads_into, version_bytes

CALLER = Principal(None, "::1")
ID = "0123456789abcdef"
GONE = "the store's folder is gone: .* mount it"
SPLIT = Split(name="two", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
WRITES: dict[str, Callable[[ModelStore], object]] = {
    "create": lambda store: store.storage.create("digits/a", b"1"),
    "replace": lambda store: store.storage.replace("digits/a", b"1"),
    "append": lambda store: store.storage.append_private("digits/samples/a.jsonl", b"1"),
    "claim": lambda store: store.claim("digits", 2, "me"),
    "promote": lambda store: store.promote("digits", 1),
    "annotate": lambda store: annotate(store.storage, "digits", 1, "me", "text"),
    "evidence": lambda store: EvidenceFiles(store.storage, "digits", ID).write("a-1", Evidence()),
    "verdict": lambda store: EvidenceFiles(store.storage, "digits", ID).write_verdict({}),
    "lease": lambda store: Lease(store.storage, f"digits/rollouts/{ID}", "a-1", 5.0).look(),
    "comparison": lambda store: write_comparisons(
        store.storage, "digits", Traffic(split=SPLIT), "a-1", {2: Evidence()}, None
    ),
}


@pytest.fixture
def there(tmp_path: Path, folder: Path) -> ModelStore:
    """Returns a store with a version, which this process has open."""
    found = ModelStore(str(tmp_path / "volume" / "store"))
    publish_in(found, folder)
    return found


def unmount(store: ModelStore, *, leaves_a_folder: bool = False) -> None:
    place = Path(store.url)
    place.rename(place.with_name("store.gone"))
    if leaves_a_folder:
        place.mkdir()


def mount(store: ModelStore) -> None:
    place = Path(store.url)
    if place.exists():
        place.rmdir()
    place.with_name("store.gone").rename(place)


@pytest.mark.parametrize("leaves_a_folder", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_no_write_creates_the_folder(there: ModelStore, write: str, leaves_a_folder: bool) -> None:
    unmount(there, leaves_a_folder=leaves_a_folder)
    with pytest.raises(StoreGoneError, match=GONE):
        WRITES[write](there)
    place = Path(there.url)
    assert (list(place.iterdir()) if leaves_a_folder else place.exists()) in ([], False)
    mount(there)
    WRITES[write](there)


@pytest.mark.parametrize("leaves_a_folder", [False, True])
def test_no_version_is_published_or_uploaded_meanwhile(
    there: ModelStore, tmp_path: Path, folder: Path, leaves_a_folder: bool
) -> None:
    """A number that is taken in the volume would get other contents."""
    source = ModelStore(str(tmp_path / "source"))
    publish_in(source, folder, "other")
    files = version_bytes(source, "other", 1)
    uploads = uploads_into(there, Path(there.url, ".uploads"))
    begun = uploads.begin(declared(files, "other"), "key:ci")
    unmount(there, leaves_a_folder=leaves_a_folder)
    calls: list[Callable[[], object]] = [
        lambda: uploads.begin(declared(files, "another"), "key:ci"),
        lambda: uploads.begin(declared(files, "other"), "key:ci"),
        lambda: uploads.state(begun.id, "key:ci"),
        lambda: send_missing(uploads, begun, files),
        lambda: uploads.finish(begun.id, "key:ci"),
        lambda: uploads.abandon(begun.id, "key:ci"),
        lambda: there.publish(draft_in(folder), folder),
    ]
    for call in calls:
        with pytest.raises(StoreGoneError, match=GONE):
            call()
    place = Path(there.url)
    assert (list(place.iterdir()) if leaves_a_folder else place.exists()) in ([], False)
    mount(there)
    send_missing(uploads, begun, files)
    assert uploads.finish(begun.id, "key:ci")[0].model == "other"
    assert there.publish(draft_in(folder), folder).version == 2


def test_a_publisher_may_create_the_folder_on_purpose(there: ModelStore, folder: Path) -> None:
    unmount(there)
    publish_in(ModelStore(there.url), folder, "other")
    there.claim("other", 2, "me")
    assert there.models() == ["other"]


def test_an_empty_store_may_be_another_folder_than_before(tmp_path: Path) -> None:
    """File systems without stable inodes give a folder another one."""
    store = ModelStore(str(tmp_path / "store"))
    unmount(store, leaves_a_folder=True)
    store.claim("digits", 1, "me")
    assert (tmp_path / "store" / "digits").exists()


def test_an_awaited_folder_is_not_created_and_is_followed(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "volume" / "store"
    awaiting = ModelStore(str(place), when_missing="await")
    calls: list[Callable[[], object]] = [
        awaiting.listing,
        lambda: awaiting.storage.create("digits/a", b"1"),
        lambda: awaiting.publish(draft_in(folder), folder),
    ]
    for call in calls:
        with pytest.raises(StoreGoneError, match=r"the store's folder is not there: .* mount it"):
            call()
    assert not place.parent.exists()
    publish_in(ModelStore(str(place)), folder)
    assert awaiting.models() == ["digits"]
    place.rename(place.with_name("elsewhere"))
    with pytest.raises(StoreGoneError, match=GONE):
        awaiting.listing()


def test_an_awaited_folder_may_be_unreadable_for_now(tmp_path: Path) -> None:
    """As that of a stale mount: a process that replaces another one starts all the same."""
    unreadable = tmp_path / ("x" * 300)
    store = ModelStore(str(unreadable), when_missing="await")
    with pytest.raises(StorageError, match="File name too long"):
        store.storage.check_there()
    with pytest.raises(StorageError, match="File name too long"):
        ModelStore(str(unreadable))


def test_an_awaited_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StorageError, match=r"cannot open the store .*file is a file"):
            ModelStore(str(url), when_missing="await")


def test_an_empty_folder_in_place_of_a_known_one_is_not_it(there: ModelStore, folder: Path) -> None:
    known = there.storage.identity
    unmount(there, leaves_a_folder=True)
    replacing = ModelStore(there.url, when_missing="await", known=known)
    for call in (replacing.listing, lambda: publish_in(replacing, folder, "other")):
        with pytest.raises(StoreGoneError, match=GONE):
            call()
    assert not any(Path(there.url).iterdir())
    mount(there)
    assert replacing.models() == ["digits"]


def test_the_known_folder_may_be_empty(tmp_path: Path) -> None:
    known = ModelStore(str(tmp_path / "store")).storage.identity
    replacing = ModelStore(str(tmp_path / "store"), when_missing="await", known=known)
    replacing.claim("digits", 1, "me")
    assert list(replacing.listing()) == ["digits"]


@given(st.none() | st.builds(FolderIdentity, *[st.integers(0, 2**64 - 1)] * 2))
def test_a_folder_survives_as_an_argument(known: FolderIdentity | None) -> None:
    assert known_folder(folder_argument(known)) == known


@pytest.fixture
def registry(there: ModelStore) -> Iterator[Registry]:
    """Returns the registry of the store, open to callers without credentials."""
    access = RegistryAccess(mode="open", is_closed=False)
    uploads = uploads_into(there, Path(there.url, ".uploads"))
    found = Registry(there, uploads, access, lambda *_: False)
    yield found
    found.close()


async def test_calls_of_a_registry_say_that_the_folder_is_gone(
    there: ModelStore, registry: Registry
) -> None:
    document = declared({"manifest.json": b"{}"}, "other")
    unmount(there)
    said = "^the store's folder is gone: the store was moved .* mount it"
    with pytest.raises(StoreUnavailableError, match=said) as pushed:
        await registry.begin(CALLER, lambda _: document)
    with pytest.raises(StoreUnavailableError, match=said):
        await registry.annotate(CALLER, "digits", 1, "text", None)
    with pytest.raises(StoreUnavailableError, match=said):
        await registry.model(CALLER, "digits", None, 10)
    with pytest.raises(StoreUnavailableError, match=said):
        await registry.models(CALLER, "", 10)
    assert pushed.value.http_status == 503
    with pytest.raises(StoreGoneError):
        there.storage.check_there()


async def next_event(events: AsyncGenerator[Event | None, None]) -> Event:
    async with asyncio.timeout(30):
        async for event in events:
            if event is not None:
                return event
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("leaves_a_folder", [False, True])
async def test_events_are_not_told_again_once_the_folder_returns(
    there: ModelStore, leaves_a_folder: bool
) -> None:
    is_gone = asyncio.Event()

    async def in_thread(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except StoreGoneError as error:
            is_gone.set()
            raise StoreUnavailableError(str(error)) from error

    feed = EventFeed(there, in_thread, 0.01)
    task = asyncio.create_task(feed.run())
    events = feed.read(EventCaller("key:all", lambda _: True, lambda: False), "0")
    first = await next_event(events)
    unmount(there, leaves_a_folder=leaves_a_folder)
    await asyncio.wait_for(is_gone.wait(), 30)
    mount(there)
    there.promote("digits", 1)
    second = await next_event(events)
    task.cancel()
    assert [one.document["kind"] for one in (first, second)] == ["pushed", "promoted"]
