"""The registry over a store in a folder: what its calls cost the event loop, and what they say."""

import asyncio
import contextlib
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.records.annotations import annotate
from model_store.storage.plain_file import read_plain_file
from model_store.store import ModelStore
from model_store.uploads import known_records
from model_store.uploads.uploads import Uploads
from services.access.caller import Principal
from services.errors import (
    ForbiddenError,
    NoSpaceError,
    NotFoundError,
    OverloadedError,
    StoreUnavailableError,
    UnknownModelError,
)
from services.registry import registry as registry_module
from services.registry.failures import Places
from services.registry.registry import Registry
from tests.fixtures.principals import principal
from tests.fixtures.store_versions import draft_in, entry_in, publish_in
from tests.fixtures.uploads import declared, version_bytes

CALLER = Principal(None, "::1")
LOOP_S = 0.002
VERSIONS = 40


async def test_a_page_of_long_annotations_is_encoded_beside_the_event_loop(
    place: ModelStore, registry: Registry, folder: Path
) -> None:
    for _ in range(VERSIONS):
        version = publish_in(place, folder)
        tags: dict[str, str | None] = {f"tag {number}": "\x01" * 100 for number in range(60)}
        annotate(place.storage, "digits", version, "ada", "\x01" * 4096, tags)
    taken = []
    for _ in range(3):
        before = time.thread_time()
        page = await registry.model(CALLER, "digits", None, 100)
        taken.append(time.thread_time() - before)
    assert len(page) > 2_000_000
    assert [one["version"] for one in json.loads(page)["versions"]] == [*range(VERSIONS, 0, -1)]
    assert min(taken) < LOOP_S


async def test_a_report_of_long_numbers_is_shown_as_it_is(
    place: ModelStore, registry: Registry, folder: Path
) -> None:
    """To parse these digits and write them again would take 80 ms."""
    digits = b"9" * 300
    report = b'{"figures": [%b]}' % b",".join([digits] * 3000)
    draft = draft_in(folder)
    files = (entry_in(folder, "report.json", report),)
    place.publish(draft.model_copy(update={"files": files}), folder)
    found = await registry.version(CALLER, "digits", "1")
    assert report in found
    shown = json.loads(found)
    assert shown["manifest"] == place.manifest("digits", 1).model_dump(mode="json")


@contextlib.contextmanager
def file_sizes_up_to(size_bytes: int) -> Iterator[None]:
    """Limits the size of files that are written, which stands for the end of a disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def begin(registry: Registry, files: dict[str, bytes], principal: Principal = CALLER) -> str:
    return str((await registry.begin(principal, lambda _: declared(files)))["id"])


async def send(registry: Registry, upload: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        await registry.append(CALLER, upload, name, 0, data)


async def test_a_full_disk_is_told_without_paths_of_the_server(
    registry: Registry, tmp_path: Path, folder: Path, place: ModelStore
) -> None:
    source = ModelStore(str(tmp_path / "source"))
    publish_in(source, folder, artifact=bytes(5000))
    files = version_bytes(source, "digits", 1)
    upload = await begin(registry, files)
    with file_sizes_up_to(4000), pytest.raises(NoSpaceError) as arriving:
        await send(registry, upload, files)
    assert "the folder of the uploads: File too large; make room" in str(arriving.value)
    state = await registry.upload(CALLER, upload)
    missing = {one["file"] for one in state["files"] if one["received"] < one["size_bytes"]}
    await send(registry, upload, {name: files[name] for name in missing})
    with file_sizes_up_to(10), pytest.raises(NoSpaceError) as publishing:
        await registry.finish(CALLER, upload, "")
    assert "in the store: " in str(publishing.value)
    publish_in(place, folder, "other")
    with file_sizes_up_to(10), pytest.raises(NoSpaceError) as noted:
        await registry.annotate(CALLER, "other", None, "x" * 100, None)
    for error in (arriving, publishing, noted):
        assert str(tmp_path) not in str(error.value)


async def test_a_failure_of_the_system_is_told_in_the_log_alone(
    registry: Registry, uploads: Uploads, caplog: pytest.LogCaptureFixture
) -> None:
    uploads.folder.write_text("this is no folder")
    with pytest.raises(StoreUnavailableError, match="the server's log has the reason") as caught:
        await begin(registry, {"manifest.json": b"{}"})
    assert "/" not in str(caught.value)
    assert str(uploads.folder) in next(vars(one)["reason"] for one in caplog.records)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("in /srv/store: no", "in the store: no"),
        ("'/srv/store/digits/1/a' of file:///srv/store.", "'the store' of the store."),
        ("/srv/store/.uploads/0f/store/a", "uploads"),
        ("/srv/stores and /srv/store-2", "/srv/stores and /srv/store-2"),
        ("s3://bucket/a/b: gone", "the bucket: gone"),
    ],
)
def test_places_are_called_by_words(text: str, said: str) -> None:
    words = {
        "/srv/store": "the store",
        "/srv/store/.uploads": "uploads",
        "s3://bucket/a": "the bucket",
    }
    assert Places(words).hidden_in(text) == said


async def test_a_caller_that_may_no_longer_push_appends_nothing(
    registry: Registry, uploads: Uploads
) -> None:
    files = {"manifest.json": b"{}", "weights.bin": b"12345"}
    upload = await begin(registry, files, principal("push:digits"))
    other, stranger = principal("push:linear", "read:digits"), principal("push:linear")
    for caller, refusal in ((other, ForbiddenError), (stranger, UnknownModelError)):
        with pytest.raises(refusal):
            await registry.append(caller, upload, "weights.bin", 0, b"123")
    assert uploads.state(upload, "key:k").received["weights.bin"] == 0
    await registry.append(principal("push:digits"), upload, "weights.bin", 0, b"123")
    assert uploads.state(upload, "key:k").received["weights.bin"] == 3


async def test_a_chunk_reads_the_state_of_its_upload_once(
    registry: Registry, uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(path: str | Path, max_bytes: int) -> bytes:
        read.append(Path(path).name)
        return read_plain_file(path, max_bytes)

    upload = await begin(registry, {"manifest.json": b"{}"})
    monkeypatch.setattr(known_records, "read_plain_file", reading)
    await registry.append(CALLER, upload, "manifest.json", 0, b"{")
    await registry.append(CALLER, upload, "manifest.json", 1, b"}")
    assert read == ["upload.json"]
    path = next(uploads.folder.glob("*/upload.json"))
    path.write_text("{}")
    with pytest.raises(NotFoundError, match="begin it again"):
        await registry.append(CALLER, upload, "manifest.json", 2, b"")


async def test_events_are_told_while_all_places_of_calls_are_taken(
    place: ModelStore, registry: Registry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MAX_WAITING", 0)
    publish_in(place, folder)
    with pytest.raises(OverloadedError):
        await registry.models(CALLER, "", 10)
    following = asyncio.create_task(registry.feed.run())
    async with asyncio.timeout(30), contextlib.aclosing(registry.events(CALLER, "0")) as events:
        while (event := await anext(events)) is None:
            pass
    assert event.document["kind"] == "pushed"
    following.cancel()
