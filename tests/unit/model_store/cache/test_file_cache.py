"""The cache of files by digest: checks, eviction, sharing, and hostile content of its folder."""

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.cache.file_cache import FileCache, Outcome
from model_store.cache.private_folder import ABANDONED_S, DRAFT, PrivateFolder
from model_store.manifest import FileEntry


def entry_of(data: bytes) -> FileEntry:
    digest = hashlib.sha256(data).hexdigest()
    return FileEntry(file="model.onnx", sha256=digest, size_bytes=len(data))


class Cache:
    """A cache in a folder, and what it counted."""

    def __init__(
        self, folder: Path, max_bytes: int = 1000, now_ns: Callable[[], int] | None = None
    ) -> None:
        self.folder = folder
        clock = itertools.count(10**18)
        self.counted: list[Outcome] = []
        private = PrivateFolder(folder, now_ns or (lambda: next(clock)))
        self.files = FileCache(private, max_bytes, self.counted.append)

    def put(self, data: bytes) -> FileEntry:
        entry = entry_of(data)
        self.files.put(entry, data)
        return entry

    def path(self, entry: FileEntry) -> Path:
        return self.folder / entry.sha256


def test_a_file_comes_back_and_is_for_this_user_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    entry = entry_of(b"weights")
    assert cache.files.get(entry) is None
    cache.files.put(entry, b"weights")
    assert cache.files.get(entry) == b"weights"
    assert cache.counted == ["miss", "hit"]
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert cache.path(entry).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"weightz", b"weight", b"weights and more", b""])
def test_a_damaged_file_is_removed_and_counted(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path)
    tmp_path.chmod(0o700)
    entry = cache.put(b"weights")
    cache.path(entry).write_bytes(damage)
    assert cache.files.get(entry) is None
    if len(damage) <= len(b"weights"):
        assert cache.counted == ["damaged"]
        assert not cache.path(entry).exists()
        assert [record.message[:24] for record in caplog.records] == ["a cached file was damage"]
    cache.files.put(entry, b"weights")
    assert cache.files.get(entry) == b"weights"


acts = st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=40)


@given(acts=acts, max_bytes=st.integers(1, 60))
def test_eviction_keeps_the_files_used_last(acts: list[tuple[bool, int]], max_bytes: int) -> None:
    """File N has N bytes; compares with a model: an ordered dictionary of sizes."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder, "cache"), max_bytes)
        kept: OrderedDict[int, None] = OrderedDict()
        for is_put, size in acts:
            data = bytes([size]) * size
            if is_put:
                cache.put(data)
                if size <= max_bytes:
                    room = max_bytes - size
                    while sum(kept) > room:
                        kept.popitem(last=False)
                    kept[size] = None
                    kept.move_to_end(size)
            else:
                found = cache.files.get(entry_of(data))
                assert found == (data if size in kept else None)
                if found is not None:
                    kept.move_to_end(size)
            there = [file.stat().st_size for file in cache.folder.glob("*")]
            assert sum(there) <= max_bytes
            assert sorted(there) == sorted(kept)


def test_a_file_that_a_load_reads_is_not_evicted(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10)
    read, other = cache.put(b"12345"), cache.put(b"67890")
    with cache.path(read).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as a read in another process does
        new = cache.put(b"abcde")
        assert cache.path(read).exists()
        assert not cache.path(other).exists()
    assert cache.files.get(new) == b"abcde"


def test_a_file_above_the_limit_evicts_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10)
    small = cache.put(b"small")
    large = cache.put(b"x" * 11)
    assert cache.files.get(small) == b"small"
    assert cache.files.get(large) is None


def test_writers_share_a_folder_and_its_limit(tmp_path: Path) -> None:
    clock = itertools.count(10**18)
    caches = [Cache(tmp_path / "cache", 500, lambda: next(clock)) for _ in range(4)]

    def work(number: int) -> None:
        cache, data = caches[number % 4], bytes([number % 16]) * 100
        cache.put(data)
        assert cache.files.get(entry_of(data)) in (None, data)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(200)))
    files = list((tmp_path / "cache").iterdir())
    assert sum(file.stat().st_size for file in files) <= 500
    assert not any(cache.counted.count("damaged") for cache in caches)


def plant_link(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def plant_pipe(place: Path, _: Path) -> None:
    os.mkfifo(place)


def plant_folder(place: Path, _: Path) -> None:
    place.mkdir()
    (place / "x").write_bytes(b"x")


def plant_large(place: Path, _: Path) -> None:
    with place.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("plant", [plant_link, plant_pipe, plant_folder, plant_large])
def test_what_others_plant_in_the_folder_is_never_read(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    """A link even to the right bytes is not followed, nor is its target changed or removed."""
    cache = Cache(tmp_path / "cache")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"weights")
    cache.put(b"other")
    entry = entry_of(b"weights")
    plant(cache.path(entry), elsewhere)
    assert cache.files.get(entry) is None
    cache.files.put(entry, b"weights")
    assert cache.files.get(entry) in ((b"weights",) if plant is not plant_folder else (None,))
    assert elsewhere.read_bytes() == b"weights"


@pytest.mark.parametrize("unsafe", ["link", "writable", "file"])
def test_a_folder_that_is_not_private_costs_only_the_cache(
    tmp_path: Path, unsafe: str, caplog: pytest.LogCaptureFixture
) -> None:
    place, target = tmp_path / "cache", tmp_path / "target"
    target.mkdir(mode=0o700)
    if unsafe == "link":
        place.symlink_to(target)
    elif unsafe == "writable":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.write_bytes(b"")
    cache = Cache(place)
    for _ in range(3):
        entry = cache.put(b"weights")
        assert cache.files.get(entry) is None
    assert not list(target.iterdir())
    assert len(caplog.records) == 1
    assert "cannot be used" in caplog.records[0].message


def test_a_folder_that_others_may_read_becomes_private(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    place.chmod(0o755)
    cache = Cache(place)
    assert cache.files.get(cache.put(b"weights")) == b"weights"
    assert place.stat().st_mode & 0o777 == 0o700


class FullFolder(PrivateFolder):
    """A folder on a disk without space."""

    def write(self, name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    files = FileCache(FullFolder(tmp_path / "cache"), 1000, lambda _: None)
    for number in range(5):
        data = bytes([number])
        files.put(entry_of(data), data)
        assert files.get(entry_of(data)) is None
    (record,) = caplog.records
    assert "No space left" in record.reason  # type: ignore[attr-defined]


def test_drafts_of_killed_writers_are_removed_and_foreign_files_left(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", now_ns=lambda: 10**18)
    cache.put(b"weights")
    old, young, foreign = (cache.folder / name for name in (f"{DRAFT}1", f"{DRAFT}2", "notes"))
    for place in (old, young, foreign):
        place.write_bytes(b"x" * 5000)
        os.utime(place, ns=(10**18, 10**18))
    before_ns = 10**18 - (ABANDONED_S + 1) * 10**9
    os.utime(old, ns=(before_ns, before_ns))
    entry = cache.put(b"others")
    assert cache.files.get(entry) == b"others"
    assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)
