"""The registry over a store in a folder: what its calls cost the event loop, and what they say."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.records.annotations import annotate
from model_store.store import ModelStore
from model_store.uploads.uploads import Uploads
from services.access.caller import Principal
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from tests.fixtures.store_versions import draft_in, entry_in, publish_in
from tests.fixtures.uploads import uploads_into

CALLER = Principal(None, "::1")
LOOP_S = 0.002
VERSIONS = 40


@pytest.fixture
def place(tmp_path: Path) -> ModelStore:
    """Returns an empty store in a folder."""
    return ModelStore(str(tmp_path / "registry"))


@pytest.fixture
def uploads(place: ModelStore, tmp_path: Path) -> Uploads:
    """Returns uploads into the store, in a folder of their own."""
    return uploads_into(place, tmp_path / "arriving")


@pytest.fixture
def registry(place: ModelStore, uploads: Uploads) -> Iterator[Registry]:
    """Returns the registry of the store, open to callers without credentials."""
    access = RegistryAccess(mode="open", is_closed=False)
    found = Registry(place, uploads, access, lambda *_: False)
    yield found
    found.close()


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
