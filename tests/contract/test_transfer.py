"""Copying versions between stores: from a folder to a bucket, and from a bucket to a folder."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from model_store.errors import (
    ConflictError,
    DigestMismatchError,
    ModelNotFoundError,
    PipelinePartError,
    StorageError,
    VersionNotFoundError,
)
from model_store.records.push_record import PushRecord, publisher_of
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from model_store.transfer import CopyReport, copy_version
from tests.fixtures.onnx_models import finder, linear, publish, scorer
from tests.fixtures.pipelines import READER, publish_graph, publish_parts
from tests.fixtures.store_versions import GOLDEN, draft_in, publish_in

FILES = ["model.onnx", "golden.safetensors", "report.json"]
ALL_BYTES = len(b"onnx bytes") + len(GOLDEN) + len(b"{}\n")


@pytest.fixture
def source(store: ModelStore, folder: Path) -> ModelStore:
    """Returns a store that holds version 1 of digits, which is in production."""
    publish_in(store, folder)
    store.promote("digits", 1)
    return store


@pytest.fixture
def target(source: ModelStore, s3_url: str, tmp_path: Path) -> ModelStore:
    """Returns an empty store of the other kind."""
    return ModelStore(s3_url if source.is_local else str(tmp_path / "target"))


def copy(source: ModelStore, target: ModelStore) -> CopyReport:
    return copy_version(source, target, "digits", 1)


def contents(store: ModelStore) -> dict[str, bytes]:
    """Returns every file of version 1 except the claim."""
    return {
        path: store.storage.get(path, 2**20)
        for path in store.storage.list("digits/1/")
        if not path.endswith("claim.json")
    }


def test_a_copy_is_the_same_to_the_byte(source: ModelStore, target: ModelStore) -> None:
    heard: list[tuple[str, int]] = []
    report = copy_version(source, target, "digits", 1, lambda *file: heard.append(file))
    assert report == CopyReport(files_copied=3, files_skipped=0, bytes_copied=ALL_BYTES)
    assert heard == [(e.file, e.size_bytes) for e in source.manifest("digits", 1).all_files()]
    assert contents(target) == contents(source)
    assert target.manifest("digits", 1) == source.manifest("digits", 1)


def test_pointers_stay_behind(source: ModelStore, target: ModelStore) -> None:
    copy(source, target)
    assert source.pointers("digits") is not None
    assert target.pointers("digits") is None


def test_a_copy_takes_its_number_from_later_publishers(
    source: ModelStore, target: ModelStore, folder: Path
) -> None:
    copy(source, target)
    assert publish_in(target, folder) == 2


def test_a_second_copy_copies_nothing(
    source: ModelStore, target: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(source, target)
    monkeypatch.delattr(Storage, "replace")
    monkeypatch.delattr(Storage, "create")
    assert copy(source, target) == CopyReport(files_copied=0, files_skipped=3, bytes_copied=0)
    assert copy(source, source) == CopyReport(files_copied=0, files_skipped=3, bytes_copied=0)


def interrupted_copy(
    source: ModelStore, target: ModelStore, patch: pytest.MonkeyPatch, files_done: int
) -> None:
    """Makes a copy whose target is full after some files."""
    replace, writes = Storage.replace, count()

    def fail_late(self: Storage, path: str, data: bytes) -> None:
        if next(writes) >= files_done:
            raise StorageError("no space left")
        replace(self, path, data)

    with patch.context() as full:
        full.setattr(Storage, "replace", fail_late)
        with pytest.raises(StorageError, match="no space left"):
            copy(source, target)


@pytest.mark.parametrize("files_done", range(len(FILES)))
def test_an_interrupted_copy_leaves_no_version_and_can_be_resumed(
    source: ModelStore, target: ModelStore, monkeypatch: pytest.MonkeyPatch, files_done: int
) -> None:
    interrupted_copy(source, target, monkeypatch, files_done)
    assert target.models() == []
    report = copy(source, target)
    assert report.files_skipped == files_done
    assert report.files_copied == len(FILES) - files_done
    assert contents(target) == contents(source)


def test_a_copy_that_completes_a_push_does_not_name_its_caller(
    source: ModelStore, target: ModelStore
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    push = PushRecord(who="first", when=datetime.now(UTC))
    with pytest.raises(StorageError):
        copy_version(source, target, "digits", 1, send=fail, push=push)
    assert publisher_of(target.storage, "digits", 1)["who"] == "first"
    copy(source, target)
    assert publisher_of(target.storage, "digits", 1)["who"] == ""


@pytest.mark.parametrize("found", [b"onnx bytes"[::-1], b"onnx byte", b""])
def test_a_file_there_already_is_kept_only_if_its_bytes_are_right(
    source: ModelStore, target: ModelStore, monkeypatch: pytest.MonkeyPatch, found: bytes
) -> None:
    interrupted_copy(source, target, monkeypatch, files_done=2)
    target.storage.replace("digits/1/model.onnx", found)
    report = copy(source, target)
    left = ALL_BYTES - len(GOLDEN)
    assert report == CopyReport(files_copied=2, files_skipped=1, bytes_copied=left)
    assert contents(target) == contents(source)


def test_an_interrupted_copy_holds_its_number_against_publishers(
    source: ModelStore, target: ModelStore, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    interrupted_copy(source, target, monkeypatch, files_done=1)
    assert publish_in(target, folder, artifact=b"published meanwhile") == 2
    copy(source, target)
    assert target.versions("digits") == [1, 2]
    assert contents(target) == contents(source)


def test_a_number_somebody_else_publishes_is_refused(
    source: ModelStore, target: ModelStore
) -> None:
    target.claim("digits", 1, "ada@lab")
    with pytest.raises(ConflictError, match=r"version 1 of 'digits' in .* is taken .*ada@lab"):
        copy(source, target)
    assert list(target.storage.list()) == ["digits/1/claim.json"]


def test_an_interrupted_copy_of_another_version_is_refused(
    source: ModelStore,
    target: ModelStore,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    tmp_path: Path,
) -> None:
    other = ModelStore(str(tmp_path / "other"))
    publish_in(other, folder, artifact=b"other bytes")
    interrupted_copy(other, target, monkeypatch, files_done=1)
    with pytest.raises(ConflictError, match="is taken by another publisher"):
        copy(source, target)
    assert contents(target) == {"digits/1/model.onnx": b"other bytes"}


def test_another_version_of_the_same_number_is_refused_and_both_are_named(
    source: ModelStore, target: ModelStore, folder: Path
) -> None:
    publish_in(target, folder, artifact=b"other bytes")
    before = contents(target)
    with pytest.raises(ConflictError, match="exists in both stores and differs") as refused:
        copy(source, target)
    assert source.url in str(refused.value)
    assert target.url in str(refused.value)
    assert contents(target) == before


@pytest.mark.parametrize("file", FILES)
def test_a_corrupt_source_is_not_copied(source: ModelStore, target: ModelStore, file: str) -> None:
    data = bytearray(source.storage.get(f"digits/1/{file}", 2**20))
    data[0] ^= 1
    source.storage.replace(f"digits/1/{file}", bytes(data))
    with pytest.raises(DigestMismatchError, match=f"digits/1/{file}: sha256 differs"):
        copy(source, target)
    assert target.models() == []
    assert f"digits/1/{file}" not in target.storage.list()


def test_a_target_that_loses_bytes_is_noticed(
    source: ModelStore, target: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Storage.replace
    with monkeypatch.context() as losing:
        losing.setattr(Storage, "replace", lambda s, path, data: replace(s, path, data[:-1]))
        with pytest.raises(DigestMismatchError):
            copy(source, target)
    assert target.models() == []
    assert copy(source, target).files_copied == 3


def test_two_copies_at_once_both_succeed(
    source: ModelStore, target: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_the_files = threading.Barrier(2, timeout=30)
    create = Storage.create

    def create_together(self: Storage, path: str, data: bytes) -> None:
        if path.endswith("manifest.json"):
            both_have_the_files.wait()
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", create_together)
    with ThreadPoolExecutor(2) as pool:
        copies = [pool.submit(copy, source, target) for _ in range(2)]
        assert all(done.result().files_copied + done.result().files_skipped == 3 for done in copies)
    assert contents(target) == contents(source)


def test_a_publisher_who_ignores_the_claim_is_still_noticed(
    source: ModelStore, target: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = draft_in(folder).seal(1, source.manifest("digits", 1).created_at.replace(year=2020))
    create = Storage.create

    def create_second(self: Storage, path: str, data: bytes) -> None:
        if path.endswith("manifest.json"):
            create(self, path, other.to_json())
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", create_second)
    with pytest.raises(ConflictError, match="exists in both stores and differs"):
        copy(source, target)


def test_what_the_source_lacks_is_named_before_the_target_is_touched(
    source: ModelStore, target: ModelStore
) -> None:
    with pytest.raises(VersionNotFoundError):
        copy_version(source, target, "digits", 2)
    with pytest.raises(ModelNotFoundError):
        copy_version(source, target, "letters", 1)
    assert target.storage.list() == {}


@pytest.fixture
def pipeline(source: ModelStore, target: ModelStore) -> tuple[ModelStore, ModelStore]:
    """Returns the stores; the source has a pipeline, one of whose parts is named by its number."""
    publish_parts(source.url)
    publish(source.url, "scorer", scorer(3.0), max_batch_size=8)  # 2 (1.1.0)
    steps = [READER["steps"][0], {**READER["steps"][1], "model": "scorer@1"}]
    publish_graph(source.url, graph={**READER, "steps": steps})
    return source, target


def test_a_pipeline_is_copied_with_its_models(pipeline: tuple[ModelStore, ModelStore]) -> None:
    source, target = pipeline
    report = copy_version(source, target, "reader", 1)
    assert report.parts == ("finder/1", "scorer/1")
    assert target.manifest("reader", 1) == source.manifest("reader", 1)
    assert (target.versions("finder"), target.versions("scorer")) == ([1], [1])
    assert copy_version(source, target, "reader", 1).parts == ()


def test_models_of_a_pipeline_that_are_there_are_kept(
    pipeline: tuple[ModelStore, ModelStore],
) -> None:
    source, target = pipeline
    publish(target.url, "finder", finder(), max_batch_size=64)  # another one, which fits ^1
    own = target.manifest("finder", 1)
    assert copy_version(source, target, "reader", 1).parts == ("scorer/1",)
    assert target.manifest("finder", 1) == own != source.manifest("finder", 1)


def test_another_model_of_the_number_that_a_pipeline_names_is_refused(
    pipeline: tuple[ModelStore, ModelStore],
) -> None:
    source, target = pipeline
    publish(target.url, "scorer", scorer(7.0), max_batch_size=8)
    with pytest.raises(ConflictError, match="version 1 of 'scorer' exists in both stores"):
        copy_version(source, target, "reader", 1)
    assert "reader" not in target.models()


def test_a_pipeline_that_the_models_there_do_not_fit_is_refused(
    pipeline: tuple[ModelStore, ModelStore],
) -> None:
    source, target = pipeline
    publish(target.url, "finder", linear())
    with pytest.raises(PipelinePartError, match="step 'find'"):
        copy_version(source, target, "reader", 1)
    assert "reader" not in target.models()


@pytest.mark.parametrize("first", [1, 2])
def test_a_version_of_another_signature_under_a_number_of_the_same_major_is_refused(
    source: ModelStore, target: ModelStore, first: int
) -> None:
    for scale in (1.0, 2.0):
        publish(source.url, "scorer", scorer(scale))  # 1.0.0, 1.1.0
        publish(target.url, "scorer", linear(scale))
    publish(source.url, "scorer", scorer(3.0))  # 1.2.0
    if first == 2:
        publish(target.url, "scorer", linear(3.0))
        publish(target.url, "scorer", linear(4.0))  # 1.3.0
        target.storage.delete("scorer/3/manifest.json")
        target.storage.delete("scorer/3/claim.json")
    with pytest.raises(ConflictError, match=r"does not fit the versions \^1 in .* takes a major"):
        copy_version(source, target, "scorer", 3)
    assert 3 not in target.versions("scorer")
