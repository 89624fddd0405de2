"""Samples in a store of each kind: apart from versions, within limits, the oldest deleted first."""

import errno
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from model_store.errors import StorageError
from model_store.samples import payload_samples
from model_store.samples.payload_sample import PARTS, PayloadSample, SampleLimits
from model_store.samples.payload_samples import (
    SampleWriter,
    delete_samples,
    leaving,
    read_samples,
)
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

START = datetime(2026, 11, 22, 8, tzinfo=UTC)
LIMITS = SampleLimits(kept_bytes=8 * 1024, kept_for=timedelta(days=8))


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def sample(request_id: str, model: str = "digits", time: datetime = START) -> PayloadSample:
    return PayloadSample(
        time=time, request_id=request_id, model=model, version=1, protocol="grpc", status="OK",
        duration_ms=1.0, inputs=(),
    )  # fmt: skip


@pytest.fixture
def storage(store_url: str) -> Storage:
    return Storage(store_url)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(storage: Storage, clock: Clock) -> SampleWriter:
    return SampleWriter(storage, "0a1b2c3d", clock)


def ids(storage: Storage, model: str = "digits") -> list[str]:
    return [one.request_id for one in read_samples(storage, model)]


def sizes(storage: Storage) -> dict[str, int]:
    return storage.list("digits/samples/")


def fill(writer: SampleWriter, count: int, each: Callable[[], None] = lambda: None) -> None:
    for number in range(count):
        writer.append("digits", [sample(str(number)).to_line()], LIMITS)
        each()


def test_samples_are_appended_in_order(storage: Storage, writer: SampleWriter) -> None:
    assert ids(storage) == []
    writer.append("digits", [sample("a").to_line(), sample("b").to_line()], LIMITS)
    writer.append("digits", [sample("c").to_line()], LIMITS)
    assert list(sizes(storage)) == ["digits/samples/20261122T080001.000000Z-0a1b2c3d.jsonl"]
    assert list(read_samples(storage, "digits")) == [sample("a"), sample("b"), sample("c")]


def test_the_folder_is_no_version_and_a_folder_alone_is_no_model(
    store: ModelStore, folder: Path, clock: Clock
) -> None:
    publish_in(store, folder)
    writer = SampleWriter(store.storage, "0a1b2c3d", clock)
    for model in ("digits", "nobody"):
        writer.append(model, [sample("a", model).to_line()], LIMITS)
    assert store.models() == ["digits"]
    assert list(store.listing()) == ["digits"]
    assert store.versions("digits") == [1]
    assert publish_in(store, folder) == 2
    assert store.promote("digits", 2).generation == 1


def test_the_oldest_leave_before_it_is_too_much(storage: Storage, writer: SampleWriter) -> None:
    def check() -> None:
        assert sum(sizes(storage).values()) <= LIMITS.kept_bytes

    fill(writer, 50, check)
    left = ids(storage)
    assert left == [str(number) for number in range(50 - len(left), 50)]
    assert 25 < len(left) < 50
    assert len(sizes(storage)) <= 2 * PARTS


def test_one_append_of_much_keeps_the_limits_too(storage: Storage, writer: SampleWriter) -> None:
    writer.append("digits", [sample(str(n)).to_line() for n in range(100)], LIMITS)
    left = ids(storage)
    assert left == [str(number) for number in range(100 - len(left), 100)]
    assert sum(sizes(storage).values()) <= LIMITS.kept_bytes
    assert max(sizes(storage).values()) <= LIMITS.kept_bytes // PARTS


def test_none_is_kept_longer_than_it_may_be(
    storage: Storage, writer: SampleWriter, clock: Clock
) -> None:
    writer.append("digits", [sample("old").to_line()], LIMITS)
    clock.now += timedelta(days=2)  # more than a part of the eight: another file is begun
    writer.append("digits", [sample("new").to_line()], LIMITS)
    clock.now += timedelta(days=6)
    writer.retain(lambda _: LIMITS)
    assert ids(storage) == ["new"]
    clock.now += timedelta(days=2)
    writer.retain(lambda model: None if model == "digits" else LIMITS)
    assert ids(storage) == ["new"]
    writer.retain(lambda _: LIMITS)
    assert ids(storage) == []


def test_processes_that_start_again_leave_no_more_than_so_many_files(
    storage: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_samples, "MAX_FILES", 5)
    limits = SampleLimits(kept_bytes=2**20, kept_for=timedelta(days=8))
    for number in range(8):
        line = sample(str(number)).to_line()
        SampleWriter(storage, f"{number:08x}", clock).append("digits", [line], limits)
    assert ids(storage) == [str(number) for number in range(3, 8)]


def test_a_writer_counts_what_others_keep(storage: Storage, clock: Clock) -> None:
    first, second = (SampleWriter(storage, name * 8, clock) for name in "ab")
    fill(first, 30)
    fill(second, 30)
    assert sum(sizes(storage).values()) <= LIMITS.kept_bytes
    assert ids(storage)[-1] == "29"


def test_what_was_deleted_does_not_come_back(storage: Storage, writer: SampleWriter) -> None:
    for name in ("anna", "bert", "anna"):
        writer.append("digits", [sample(name).to_line()], LIMITS)
    assert delete_samples(storage, "digits", lambda one: one.request_id == "anna") == 2
    writer.append("digits", [sample("carl").to_line()], LIMITS)
    assert ids(storage) == ["bert", "carl"]
    assert delete_samples(storage, "digits") == 2  # files
    assert sizes(storage) == {}
    writer.append("digits", [sample("dora").to_line()], LIMITS)
    assert ids(storage) == ["dora"]


def test_deleting_leaves_other_models_and_other_files(
    storage: Storage, writer: SampleWriter
) -> None:
    storage.replace("digits/samples/README", b"by hand")
    writer.append("letters", [sample("a", "letters").to_line()], LIMITS)
    fill(writer, 1)
    writer.retain(lambda _: SampleLimits(kept_bytes=1, kept_for=timedelta(days=8)))
    assert list(sizes(storage)) == ["digits/samples/README"]
    assert ids(storage, "letters") == []


def test_others_of_this_machine_cannot_read_them(tmp_path: Path, clock: Clock) -> None:
    storage = Storage(str(tmp_path))
    fill(SampleWriter(storage, "0a1b2c3d", clock), 2)
    (path,) = sizes(storage)
    assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600


def test_a_line_that_a_crash_cut_off_is_left_out(storage: Storage, writer: SampleWriter) -> None:
    fill(writer, 2)
    (path,) = sizes(storage)
    storage.append_private(path, b'{"half a li')
    assert ids(storage) == ["0", "1"]
    assert delete_samples(storage, "digits", lambda one: one.request_id == "0") == 1
    assert ids(storage) == ["1"]
    assert b"half a li" not in b"".join(storage.get(path, 2**20) for path in sizes(storage))


def test_a_disk_that_is_full_leaves_no_half_lines(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, write = Storage(str(tmp_path)), os.write
    writer = SampleWriter(storage, "0a1b2c3d", clock)
    fill(writer, 1)
    room = 20

    def fails_when_full(file: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, room = room, 0
        return write(file, data[:taken])

    with monkeypatch.context() as full:
        full.setattr(os, "write", fails_when_full)
        with pytest.raises(StorageError, match="make room there"):
            fill(writer, 1)
    fill(writer, 2)
    assert ids(storage) == ["0", "0", "1"]


def test_nothing_leaves_for_nothing() -> None:
    assert leaving({}, LIMITS, START) == []
    path = "digits/samples/20261122T080000.000000Z-0a1b2c3d.jsonl"
    assert leaving({path: 8 * 1024}, LIMITS, START) == []
    assert leaving({path: 8 * 1024}, LIMITS, START, room=1) == [path]
    assert leaving({path: 1}, LIMITS, START + LIMITS.kept_for) == [path]
    assert (
        leaving({"digits/samples/20269999T080000.000000Z-0a1b2c3d.jsonl": 9}, LIMITS, START) == []
    )
