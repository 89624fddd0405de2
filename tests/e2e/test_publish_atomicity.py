"""Publishing is atomic, even if the publisher is killed or the disk is full."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_store.errors import StorageError
from model_store.store import ModelStore
from model_store.transfer import copy_version
from tests.fixtures import store_process
from tests.fixtures.store_versions import publish_in

# The claims of a number and of a semantic version, three files and the manifest.
WRITES = 6
KILLS = [f"{moment} {write}" for write in range(1, WRITES + 1) for moment in ("before", "after")]
PAGE_BYTES = 4096


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with version 1 of digits in production."""
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    store.promote("digits", 1)
    return store


def assert_whole(store: ModelStore, version: int) -> None:
    """Asserts that every file of the version matches its manifest."""
    manifest = store.manifest("digits", version)
    for entry in manifest.all_files():
        store.read_file(manifest, entry)


def assert_intact(store: ModelStore, folder: Path) -> None:
    """Asserts that old data is intact, every listed version is complete, and publishing works."""
    before = store.versions("digits")
    assert before[0] == 1
    pointers = store.pointers("digits")
    assert pointers is not None
    assert pointers.aliases == {"production": 1}
    added = publish_in(store, folder, artifact=b"published afterwards")
    assert store.versions("digits") == [*before, added]
    for version in [*before, added]:
        assert_whole(store, version)
    store.promote("digits", added)


@pytest.mark.parametrize("die_at", KILLS)
def test_a_publisher_killed_at_any_write(store: ModelStore, tmp_path: Path, die_at: str) -> None:
    process = store_process.start("publish", store.url, tmp_path / "child", 1, die_at=die_at)
    assert store_process.go(process) == [[]]
    assert process.returncode == -9
    published = die_at == f"after {WRITES}"
    assert store.versions("digits") == ([1, 2] if published else [1])
    assert_intact(store, tmp_path / "draft")


def test_a_publisher_writes_no_more_often_than_it_was_killed(
    store: ModelStore, tmp_path: Path
) -> None:
    process = store_process.start(
        "publish", store.url, tmp_path / "child", 1, die_at=f"before {WRITES + 1}"
    )
    assert store_process.go(process) == [["2"]]


@pytest.mark.parametrize("die_at", KILLS)
def test_a_copy_killed_at_any_write_is_resumed(
    store: ModelStore, tmp_path: Path, die_at: str
) -> None:
    target = ModelStore(str(tmp_path / "target"))
    process = store_process.start("copy", store.url, target.url, 1, die_at=die_at)
    assert store_process.go(process) == [[]]
    assert process.returncode == -9
    assert target.models() == (["digits"] if die_at == f"after {WRITES}" else [])
    copy_version(store, target, "digits", 1)
    assert_whole(target, 1)


def test_half_a_file_is_never_seen(store: ModelStore, tmp_path: Path) -> None:
    """Kills the publisher in the middle of a write: what obstore was writing has another name."""
    folder = Path(store.url) / "digits" / "2"
    folder.mkdir()
    for file in ("claim.json", "model.onnx", "manifest.json"):
        (folder / f"{file}#1").write_bytes(b"hal")
    assert store.versions("digits") == [1]
    assert_intact(store, tmp_path / "draft")


@contextmanager
def small_disk(folder: Path, pages: int) -> Iterator[Path]:
    """Mounts a real disk of so many pages; skips where mounting is not allowed."""
    folder.mkdir()
    size = f"size={pages * PAGE_BYTES}"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_at_any_page(tmp_path: Path) -> None:
    """Makes the disk a page larger until a version fits, so that every kind of file fails once."""
    draft, artifact = tmp_path / "draft", b"x" * 5 * PAGE_BYTES
    failures: list[str] = []
    for pages in range(1, 40):
        with small_disk(tmp_path / str(pages), pages) as disk:
            store = ModelStore(str(disk / "store"))
            try:
                publish_in(store, draft, artifact=artifact)
            except StorageError as error:
                failures.append(str(error))
                assert store.models() == []
            else:
                assert_whole(store, 1)
                break
    names = ("model.onnx", "golden.safetensors", "report.json", "manifest.json")
    assert all("No space left on device" in f and "make room there" in f for f in failures)
    wanted = {"digits/semver/1.0.0.json", *(f"digits/1/{name}" for name in names)}
    assert {failure.split("'")[1] for failure in failures} == wanted


def test_a_disk_with_room_again_takes_the_next_version(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", pages=24) as disk:
        store = ModelStore(str(disk / "store"))
        publish_in(store, tmp_path / "draft")
        store.promote("digits", 1)
        for _ in range(3):
            with pytest.raises(StorageError, match="No space left"):
                publish_in(store, tmp_path / "draft", artifact=b"x" * 16 * PAGE_BYTES)
        assert store.versions("digits") == [1]
        assert_intact(store, tmp_path / "draft")


def test_a_limit_on_file_size(store: ModelStore, tmp_path: Path) -> None:
    """The same where nothing can be mounted; the golden rows are the first file above the limit."""
    target = ModelStore(str(tmp_path / "target"))
    process = store_process.start("copy", store.url, target.url, 1)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    ((printed,),) = store_process.go(process)
    assert printed.startswith("StorageFullError: cannot write 'digits/1/golden.safetensors'")
    assert "File too large" in printed
    assert target.models() == []
    copy_version(store, target, "digits", 1)
    assert_whole(target, 1)
