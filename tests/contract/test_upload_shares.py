"""Shares of the folder of uploads: places by owner, and space on the disk."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_store.errors import StorageFullError, TooManyUploadsError
from model_store.store import ModelStore
from model_store.uploads.abandoned import UNRECORDED_S
from model_store.uploads.declaration import Declaration
from model_store.uploads.shares import MAX_OPEN, MAX_PER_OWNER, OWNER_SHARE, RESERVED_S, Shares
from tests.fixtures.uploads import declared, opened, uploads_into

OWNER = "key:ci"


def test_open_uploads_are_limited(store: ModelStore, tmp_path: Path) -> None:
    uploads = uploads_into(store, tmp_path / "uploads")
    files = {"manifest.json": b"{}"}
    for number in range(MAX_OPEN):
        uploads.begin(declared(files), f"key:{number}")
    with pytest.raises(TooManyUploadsError, match="finish or abandon one"):
        uploads.begin(declared(files), "key:more")
    uploads.begin(declared(files), "key:0")


def test_one_owner_leaves_places_to_others(store: ModelStore, tmp_path: Path) -> None:
    """Many calls begin at once, on two objects as of two processes: as many succeed as may."""
    some = [uploads_into(store, tmp_path / "uploads") for _ in range(2)]
    refusals: list[str] = []

    def begin(number: int) -> bool:
        try:
            some[number % 2].begin(declared({"manifest.json": b"%d" % number}), OWNER)
        except TooManyUploadsError as error:
            refusals.append(str(error))
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(3 * MAX_PER_OWNER))) == MAX_PER_OWNER
    assert all("16 of your uploads are open" in one for one in refusals)
    state = some[0].begin(declared({"manifest.json": b"{}"}), "key:other")
    some[0].abandon(state.id, "key:other")
    resumed = next(one for one in range(3 * MAX_PER_OWNER) if begin(one))
    some[1].abandon(declared({"manifest.json": b"%d" % resumed}).upload_id(OWNER), OWNER)
    assert begin(1000)
    assert not begin(1001)


def test_places_of_uploads_that_never_began_are_free_after_a_minute(
    store: ModelStore, tmp_path: Path
) -> None:
    place, files = tmp_path / "uploads", {"manifest.json": b"{}"}
    for number in range(MAX_PER_OWNER):  # the server is killed before it writes the record
        taken = Shares(place).take_place(f"{number:032}", OWNER)
    uploads = uploads_into(store, place)
    with pytest.raises(TooManyUploadsError):
        uploads.begin(declared(files), OWNER)
    a_minute_ago = os.stat(taken / "lock").st_mtime - UNRECORDED_S - 1
    os.utime(taken / "lock", (a_minute_ago, a_minute_ago))
    state = uploads.begin(declared(files), OWNER)
    assert not taken.exists()
    os.utime(place / state.id / "lock", (a_minute_ago, a_minute_ago))
    assert uploads.collect() == 0


def sized(size_bytes: int, manifest: bytes = b"{}") -> Declaration:
    """Returns the declaration of a manifest and a file of some size."""
    declaration = declared({"manifest.json": manifest, "weights.bin": b""})
    weights = declaration.files[1].model_copy(update={"size_bytes": size_bytes})
    return declaration.model_copy(update={"files": (declaration.files[0], weights)})


def free_disk(monkeypatch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    """Makes the disk of the uploads have some free space."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free()))


def test_open_uploads_do_not_fill_the_disk_together(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "uploads"
    uploads = uploads_into(store, place)
    arrived = 0
    free_disk(monkeypatch, lambda: 1_000_000 - arrived)
    first = uploads.begin(sized(600_000), "key:a")
    with pytest.raises(StorageFullError) as caught:
        uploads.begin(sized(600_000), "key:b")
    assert "needs 600,002 bytes, and 200,004 of them are missing" in str(caught.value)
    assert "1,000,000 free, of which 600,002 are reserved for other uploads" in str(caught.value)
    assert opened(place) == [first.id]  # one that was refused holds no place
    arrived = uploads.append(first.id, "key:a", "weights.bin", 0, bytes(500_000))
    assert uploads.begin(sized(600_000), "key:a").received["weights.bin"] == 500_000
    with pytest.raises(StorageFullError, match="200,004 of them are missing"):
        uploads.begin(sized(600_000), "key:b")
    uploads.begin(sized(399_000), "key:b")
    uploads.abandon(first.id, "key:a")
    arrived = 0
    uploads.begin(sized(600_000), "key:c")


def test_of_two_uploads_at_once_the_disk_takes_one(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = uploads_into(store, tmp_path / "uploads")
    barrier = threading.Barrier(2)

    def free() -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(0.3)  # both have come here, unless one has to wait for the other
        return 1_000_000

    free_disk(monkeypatch, free)

    def begin(owner: str) -> bool:
        try:
            uploads.begin(sized(600_000), owner)
        except StorageFullError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(begin, ["key:a", "key:b"])) == [False, True]


def test_a_known_upload_keeps_its_bytes_when_others_have_filled_the_disk(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = uploads_into(store, tmp_path / "uploads")
    state = uploads.begin(sized(6000), OWNER)
    uploads.append(state.id, OWNER, "weights.bin", 0, bytes(1000))
    free_disk(monkeypatch, lambda: 100)
    with pytest.raises(StorageFullError, match="4,902 of them are missing"):
        uploads.begin(sized(6000), OWNER)
    assert uploads.state(state.id, OWNER).received["weights.bin"] == 1000


def test_an_upload_larger_than_the_disk_is_refused_at_its_begin(
    store: ModelStore, tmp_path: Path
) -> None:
    uploads = uploads_into(store, tmp_path / "uploads")
    with pytest.raises(StorageFullError, match="the upload needs"):
        uploads.begin(sized(2**40 - 2), OWNER)
    assert opened(tmp_path / "uploads") == []


def test_one_owner_leaves_space_to_others(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = uploads_into(store, tmp_path / "uploads", owner_share=OWNER_SHARE)
    free_disk(monkeypatch, lambda: 1_000_000)
    with pytest.raises(StorageFullError, match="one caller may reserve 500,000"):
        uploads.begin(sized(500_000), OWNER)
    first = uploads.begin(sized(300_000, b"1"), OWNER)
    with pytest.raises(StorageFullError, match="your other uploads have reserved 300,001"):
        uploads.begin(sized(300_000, b"2"), OWNER)
    assert opened(tmp_path / "uploads") == [first.id]
    other = uploads.begin(sized(400_000), "key:other")
    uploads.append(first.id, OWNER, "weights.bin", 0, bytes(250_000))
    uploads.begin(sized(249_000, b"2"), OWNER)
    uploads.abandon(other.id, "key:other")
    free_disk(monkeypatch, lambda: 310_000)
    uploads.begin(sized(300_000, b"1"), OWNER)  # what it has reserved it keeps


def test_an_upload_without_bytes_for_an_hour_reserves_nothing(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "uploads"
    uploads = uploads_into(store, place, 2 * RESERVED_S)
    free_disk(monkeypatch, lambda: 1_000_000)
    first = uploads.begin(sized(900_000), "key:a")
    with pytest.raises(StorageFullError):
        uploads.begin(sized(900_000), "key:b")
    long_ago = time.time() - 1.5 * RESERVED_S
    os.utime(place / first.id / "claim.json", (long_ago, long_ago))
    uploads.begin(sized(900_000), "key:a")  # to begin again reserves nothing anew
    second = uploads.begin(sized(900_000), "key:b")
    uploads.abandon(second.id, "key:b")
    uploads.append(first.id, "key:a", "weights.bin", 0, bytes(10))
    with pytest.raises(StorageFullError):
        uploads.begin(sized(900_000), "key:b")
