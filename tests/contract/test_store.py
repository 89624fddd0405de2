"""The contract of every store, wherever it lies: a folder, and a bucket of an S3 server."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from model_store.document import LARGE
from model_store.errors import (
    BadNameError,
    ConflictError,
    DigestMismatchError,
    ManifestError,
    ManifestFromFutureError,
    ModelNotFoundError,
    StorageError,
    StoreError,
    StoreNotFoundError,
    TooLargeError,
    VersionNotFoundError,
)
from model_store.listing import ModelListing
from model_store.pointers import Pointers
from model_store.semver.semver import FIRST
from model_store.storage.storage import Storage
from model_store.store import MAX_CLAIM_ATTEMPTS, ModelStore
from tests.fixtures import store_process
from tests.fixtures.store_versions import draft_in, publish_in, rollback

FILES = ["model.onnx", "golden.safetensors", "report.json"]


def flip_a_bit(store: ModelStore, path: str) -> None:
    data = bytearray(store.storage.get(path, 2**20))
    data[len(data) // 2] ^= 1
    store.storage.replace(path, bytes(data))


def test_a_version_comes_back_as_it_was_published(store: ModelStore, folder: Path) -> None:
    draft = draft_in(folder)
    before = datetime.now(UTC)
    published = store.publish(draft, folder)
    assert published.version == 1
    assert before <= published.created_at <= datetime.now(UTC)
    found = ModelStore(store.url).manifest("digits", 1)
    assert found == published == draft.seal(1, published.created_at, FIRST)
    for entry in found.all_files():
        assert store.read_file(found, entry) == (folder / entry.file).read_bytes()


def test_progress_hears_of_every_file(store: ModelStore, folder: Path) -> None:
    heard: list[tuple[str, int]] = []
    manifest = store.publish(draft_in(folder), folder, lambda *file: heard.append(file))
    assert heard == [(entry.file, entry.size_bytes) for entry in manifest.all_files()]


def test_versions_count_up_for_each_model(store: ModelStore, folder: Path) -> None:
    assert [publish_in(store, folder) for _ in range(3)] == [1, 2, 3]
    assert publish_in(store, folder, model="digits2") == 1
    assert store.versions("digits") == [1, 2, 3]
    assert store.models() == ["digits", "digits2"]


def test_the_tenth_version_is_newer_than_the_ninth(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_store.store.MAX_CLAIM_ATTEMPTS", 1)  # it must know, not search
    for version in range(1, 10):
        store.claim("digits", version, "somebody")
    assert publish_in(store, folder) == 10
    assert publish_in(store, folder) == 11
    assert store.versions("digits") == [10, 11]


def test_the_listing_tells_published_claimed_and_generations(
    store: ModelStore, folder: Path
) -> None:
    publish_in(store, folder)
    store.claim("digits", 2, "somebody who died")
    store.promote("digits", 1)
    store.storage.create("digits/notes/readme.txt", b"a file the store does not know")
    listing = {"digits": ModelListing(versions=(1,), claimed=(1, 2), generations=(1,))}
    assert store.listing() == store.listing("digits") == listing


def test_what_no_model_can_be_is_not_looked_at(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    unreadable = Path(store.url, "lost+found")
    unreadable.symlink_to(unreadable)
    assert store.models() == ["digits"]


def test_a_model_that_cannot_be_listed_is_told_beside_the_others(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    publish_in(store, tmp_path / "draft", "whole")
    manifest = Path(store.url, "digits", "1", "manifest.json")
    manifest.unlink()
    manifest.symlink_to(manifest)
    listings = store.listing()
    assert "cannot look for 'digits/1/manifest.json'" in listings["digits"].unreadable
    assert store.models() == ["whole"]
    for read in (store.versions, store.pointers, store.history):
        with pytest.raises(StorageError, match=r"cannot look for 'digits/1/manifest.json'"):
            read("digits")


def test_what_lies_there_instead_of_models_is_named(store: ModelStore, folder: Path) -> None:
    assert store.foreign_layout() == ""
    store.storage.create("resnet/1/model.onnx", b"")
    assert f"{store.url} looks like a Triton model repository" in store.foreign_layout()
    publish_in(store, folder)
    assert store.foreign_layout() == ""


def test_no_more_is_read_of_a_file_than_its_reader_takes(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    store.promote("digits", 1)
    for path in ("digits/1/manifest.json", "digits/1/model.sig", "digits/pointers/00000001.json"):
        store.storage.replace(path, b" " * (2**20 + 1))
    for read in (
        lambda: store.manifest("digits", 1),
        lambda: store.pointers("digits"),
        lambda: store.signature("digits", 1),
    ):
        with pytest.raises(StoreError, match=r"it has 1,048,577 bytes, and at most [0-9,]+ are"):
            read()


def test_a_file_larger_than_the_manifest_says_is_not_read(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    manifest = store.manifest("digits", 1)
    store.storage.replace("digits/1/report.json", b" " * 100)
    entry = manifest.file("report.json")
    assert entry is not None
    with pytest.raises(DigestMismatchError, match="it has 100 bytes, and at most 3 are read"):
        store.read_file(manifest, entry)
    with pytest.raises(TooLargeError, match="has 3 bytes, and at most 2 are read"):
        store.read_file(manifest, entry, 2)


def test_a_pipe_in_the_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    manifest = Path(store.url, "digits", "1", "manifest.json")
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(StorageError, match="it is not a file"):
        store.manifest("digits", 1)


def test_a_pointer_that_says_another_generation_is_refused(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    pointers = store.promote("digits", 1)
    far = pointers.model_copy(update={"generation": 2**80})
    store.storage.replace("digits/pointers/00000001.json", far.to_json())
    with pytest.raises(ManifestError, match="says that it is generation 1208925819614629174706176"):
        store.pointers("digits")


def test_a_manifest_that_nobody_could_read_is_not_published(
    store: ModelStore, folder: Path
) -> None:
    many = {f"library-{number}": "1" for number in range(LARGE.max_values)}
    draft = draft_in(folder)
    lineage = draft.lineage.model_copy(update={"library_versions": many})
    with pytest.raises(ManifestError, match="at most 25,000 are read"):
        store.publish(draft.model_copy(update={"lineage": lineage}), folder)
    assert store.models() == []


def test_a_claimed_number_is_no_version(store: ModelStore, folder: Path) -> None:
    store.claim("digits", 1, "somebody who died")
    assert store.models() == []
    with pytest.raises(ModelNotFoundError, match="it holds nothing yet"):
        store.versions("digits")
    assert publish_in(store, folder) == 2


def test_a_claim_may_be_repeated_by_its_owner_only(store: ModelStore) -> None:
    store.claim("digits", 1, "ada")
    store.claim("digits", 1, "ada")
    with pytest.raises(ConflictError, match=r"version 1 of 'digits' in .* is taken .*ada"):
        store.claim("digits", 1, "grace")


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ("model_store", "modelstore"),
        ("var/model_store", "vra/model_store"),
        ("var/a/b", "var/aa/b"),
    ],
)
def test_a_folder_that_is_not_there_is_told_with_the_nearest(
    tmp_path: Path, there: str, asked: str
) -> None:
    (tmp_path / there).mkdir(parents=True)
    made = ModelStore(str(tmp_path / asked))
    assert made.storage.how_new() == (
        f"there was no folder {tmp_path / asked}, so an empty store was created there "
        f"(did you mean '{tmp_path / there}'?)"
    )
    with pytest.raises(ModelNotFoundError, match=f"there was no folder .*{asked}, so"):
        made.versions("digits")
    assert ModelStore(str(tmp_path / asked)).storage.how_new() == ""


def test_a_folder_that_must_exist_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "model_store").mkdir()
    with pytest.raises(StoreNotFoundError, match=r"no such folder \(did you mean '.*model_store'"):
        ModelStore(str(tmp_path / "modelstore"), when_missing="refuse")
    assert not (tmp_path / "modelstore").exists()
    assert ModelStore(str(tmp_path / "model_store"), when_missing="refuse").models() == []


def test_a_folder_that_nothing_is_like_is_told_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "something").mkdir()
    told = ModelStore(str(tmp_path / "x" / "y")).storage.how_new()
    assert told.endswith("created there")
    assert ModelStore(str(tmp_path / "something")).storage.how_new() == ""


def test_an_alias_that_differs_by_case_alone_is_not_made(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    store.promote("digits", 1, "Canary")
    with pytest.raises(BadNameError, match="'canary' differs by case alone from 'Canary'; give"):
        store.promote("digits", 1, "canary")
    assert store.promote("digits", 1).aliases == {"Canary": 1, "production": 1}


def test_what_is_not_there_is_named(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    publish_in(store, folder)
    with pytest.raises(ModelNotFoundError, match=r"'digit' is not .* \(did you mean 'digits'\?\)"):
        store.manifest("digit", 1)
    with pytest.raises(ModelNotFoundError, match=r"'other' is not in .* \(known: digits\)"):
        store.manifest("other", 1)
    with pytest.raises(VersionNotFoundError, match="has no version 3; published: 1, 2"):
        store.manifest("digits", 3)
    with pytest.raises(BadNameError):
        store.manifest("../digits", 1)


@pytest.mark.parametrize("file", FILES)
def test_one_flipped_bit_is_refused(store: ModelStore, folder: Path, file: str) -> None:
    manifest = store.publish(draft_in(folder), folder)
    flip_a_bit(store, f"digits/1/{file}")
    for entry in manifest.all_files():
        if entry.file == file:
            with pytest.raises(DigestMismatchError, match=f"digits/1/{file}: sha256 differs"):
                store.read_file(manifest, entry)
        else:
            store.read_file(manifest, entry)


def test_a_missing_or_cut_file_is_refused(store: ModelStore, folder: Path) -> None:
    manifest = store.publish(draft_in(folder), folder)
    entry = manifest.artifacts[0].file
    store.storage.replace("digits/1/model.onnx", b"onnx byte")
    with pytest.raises(DigestMismatchError, match=r"10 bytes, found .* and 9"):
        store.read_file(manifest, entry)
    store.storage.delete("digits/1/model.onnx")
    with pytest.raises(StorageError, match=r"'digits/1/model\.onnx' .* not found"):
        store.read_file(manifest, entry)


def test_a_manifest_nobody_can_use_is_refused(store: ModelStore, folder: Path) -> None:
    manifest = store.publish(draft_in(folder), folder)
    store.storage.create("digits/2/manifest.json", b'{"schema_version": 2}')
    store.storage.create("digits/3/manifest.json", manifest.to_json()[:-9])
    store.storage.create("digits/4/manifest.json", manifest.to_json())
    with pytest.raises(ManifestFromFutureError):
        store.manifest("digits", 2)
    with pytest.raises(ManifestError, match="not JSON"):
        store.manifest("digits", 3)
    with pytest.raises(ManifestError, match="is the manifest of 'digits' version 1"):
        store.manifest("digits", 4)
    assert store.manifest("digits", 1) == manifest


def assert_nothing_published(store: ModelStore, folder: Path) -> None:
    """Asserts that only the number is used up, and that the next publisher succeeds."""
    assert list(store.storage.list()) == ["digits/1/claim.json"]
    assert publish_in(store, folder) == 2
    assert store.versions("digits") == [2]


def test_a_file_that_changed_since_the_draft_is_not_published(
    store: ModelStore, folder: Path
) -> None:
    draft = draft_in(folder)
    (folder / "report.json").write_bytes(b"{ }")
    with pytest.raises(DigestMismatchError, match=r"report\.json: sha256 differs"):
        store.publish(draft, folder)
    assert_nothing_published(store, folder)


def test_a_file_the_folder_lacks_is_named(store: ModelStore, folder: Path) -> None:
    draft = draft_in(folder)
    (folder / "report.json").unlink()
    with pytest.raises(StorageError, match=r"cannot read 'report\.json'.*No such file"):
        store.publish(draft, folder)
    assert_nothing_published(store, folder)


def test_a_store_that_loses_bytes_is_noticed(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as losing:
        replace = Storage.replace
        losing.setattr(Storage, "replace", lambda s, path, data: replace(s, path, data[:-1]))
        with pytest.raises(DigestMismatchError, match=r"digits/1/model\.onnx"):
            publish_in(store, folder)
    assert_nothing_published(store, folder)


@pytest.mark.parametrize("failing", range(len(FILES)))
def test_a_store_that_fails_leaves_nothing(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    with monkeypatch.context() as full:
        fail_at_write(full, failing)
        with pytest.raises(StorageError, match="no space left"):
            publish_in(store, folder)
    assert_nothing_published(store, folder)


def fail_at_write(patch: pytest.MonkeyPatch, number: int) -> None:
    """Makes the write of this number (from 0), and all later ones, fail."""
    replace, writes = Storage.replace, count()

    def fail_late(self: Storage, path: str, data: bytes) -> None:
        if next(writes) >= number:
            raise StorageError("no space left")
        replace(self, path, data)

    patch.setattr(Storage, "replace", fail_late)


def test_publishers_in_many_processes_get_different_versions(
    store: ModelStore, tmp_path: Path
) -> None:
    processes = [store_process.start("publish", store.url, tmp_path / str(i), 4) for i in range(4)]
    printed = store_process.go(*processes)
    assert sorted(int(version) for lines in printed for version in lines) == list(range(1, 17))
    assert store.versions("digits") == list(range(1, 17))
    for process, versions in enumerate(printed):
        for time, version in enumerate(versions):
            manifest = store.manifest("digits", int(version))
            data = store.read_file(manifest, manifest.artifacts[0].file)
            assert data == f"{tmp_path / str(process)} {time}".encode()


def test_a_publisher_who_looked_too_early_gets_the_next_number(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in(store, folder)
    monkeypatch.setattr(ModelStore, "listing", lambda *_: {})
    assert publish_in(store, folder) == 2
    assert publish_in(store, folder) == 3


def test_a_publisher_who_always_comes_second_gives_up(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def taken(_: ModelStore, model: str, version: int, owner: str) -> None:
        attempts.append(version)
        raise ConflictError(f"{owner} came too late for {model}")

    monkeypatch.setattr(ModelStore, "claim", taken)
    with pytest.raises(ConflictError, match="100 other publishers of 'digits' were faster"):
        publish_in(store, folder)
    assert attempts == list(range(1, MAX_CLAIM_ATTEMPTS + 1))


def test_pointers_move_and_are_remembered(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    publish_in(store, folder)
    assert store.pointers("digits") is None
    assert store.history("digits") == []
    before = datetime.now(UTC)
    first = store.promote("digits", 1, why="the first")
    second = store.promote("digits", 2, alias="canary")
    third = store.promote("digits", 2)
    assert [p.generation for p in (first, second, third)] == [1, 2, 3]
    assert first.aliases == {"production": 1}
    assert second.aliases == {"production": 1, "canary": 2}
    assert third.aliases == {"production": 2, "canary": 2}
    assert first.why == "the first"
    assert "@" in first.who
    assert before <= first.when <= second.when <= third.when <= datetime.now(UTC)
    assert store.history("digits") == [first, second, third]
    assert store.pointers("digits") == third
    assert store.pointers_at("digits", 2) == second


def test_rollback_is_a_new_generation(store: ModelStore, folder: Path) -> None:
    for version in (1, 2):
        publish_in(store, folder)
        store.promote("digits", version)
    rolled_back = rollback(store, "digits", why="wrong on Mondays")
    assert rolled_back.generation == 3
    assert rolled_back.aliases == {"production": 1}
    assert rolled_back.why == "wrong on Mondays"
    assert [p.aliases["production"] for p in store.history("digits")] == [1, 2, 1]


def test_pointers_to_nothing_are_refused(store: ModelStore, folder: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        store.promote("digits", 1)
    publish_in(store, folder)
    with pytest.raises(VersionNotFoundError):
        store.promote("digits", 2)
    with pytest.raises(BadNameError, match=r"alias '\.\./x'"):
        store.promote("digits", 1, alias="../x")
    with pytest.raises(BadNameError, match="alias '3' is not allowed: a number names a version"):
        store.promote("digits", 1, alias="3")
    with pytest.raises(VersionNotFoundError, match="nothing to roll back to"):
        rollback(store, "digits")
    with pytest.raises(ModelNotFoundError):
        store.history("letters")
    assert store.pointers("digits") is None


def test_exactly_one_of_many_pointer_moves_wins(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in(store, folder)
    movers = 8
    everybody_has_looked = threading.Barrier(movers, timeout=30)
    look = ModelStore.pointers

    def look_and_wait(self: ModelStore, model: str) -> Pointers | None:
        found = look(self, model)
        everybody_has_looked.wait()
        return found

    def move(mover: int) -> str:
        try:
            store.promote("digits", 1, why=str(mover))
        except ConflictError as error:
            return str(error)
        return str(mover)

    with monkeypatch.context() as together, ThreadPoolExecutor(movers) as pool:
        together.setattr(ModelStore, "pointers", look_and_wait)
        told = list(pool.map(move, range(movers)))
    (only,) = store.history("digits")
    told.remove(only.why)
    assert len(told) == movers - 1
    assert all("to generation 1 first; check its history and try again" in e for e in told)


def test_a_rollback_never_undoes_a_move_it_has_not_seen(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (1, 2):
        publish_in(store, folder)
        store.promote("digits", version)
    publish_in(store, folder)
    look = ModelStore.pointers

    def look_then_wait(self: ModelStore, model: str) -> Pointers | None:
        found = look(self, model)
        slow.undo()
        ModelStore(self.url).promote("digits", 3, why="while the other one was thinking")
        return found

    with monkeypatch.context() as slow:
        slow.setattr(ModelStore, "pointers", look_then_wait)
        with pytest.raises(ConflictError, match="another process moved a pointer"):
            rollback(store, "digits")
    assert [p.aliases["production"] for p in store.history("digits")] == [1, 2, 3]


@pytest.mark.usefixtures("bucket_url")
@pytest.mark.parametrize("url", ["s3://no-such-bucket/x", "gopher://x"])
def test_a_store_that_cannot_be_reached_is_named(url: str) -> None:
    with pytest.raises(StorageError, match=url):
        ModelStore(url).models()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="give a folder, s3://bucket/prefix, gs://"):
        ModelStore(str(tmp_path / "file"))


def test_only_folders_are_local(store: ModelStore, tmp_path: Path) -> None:
    assert store.is_local != store.url.startswith(("s3://", "gs://", "az://"))
    assert ModelStore(f"file://{tmp_path}").is_local
