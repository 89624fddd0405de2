"""Deletion and annotations, in a folder and in a bucket."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_store.errors import (
    AnnotationError,
    BadNameError,
    ConflictError,
    StorageError,
    VersionDeletedError,
    VersionInUseError,
    VersionNotFoundError,
)
from model_store.listing import NewestOfModel, model_names, newest_of
from model_store.pointers import MAX_ALIASES, Pointers
from model_store.records import deletion
from model_store.records.annotations import annotate, annotations_of
from model_store.records.deletion import delete_version
from model_store.records.tombstone import tombstone_of
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from tests.fixtures.pipelines import READER, publish_graph, publish_parts
from tests.fixtures.store_versions import publish_in


@pytest.fixture
def two(store: ModelStore, folder: Path) -> ModelStore:
    """Returns a store with two versions of digits, the second in production."""
    for artifact in (b"first", b"second"):
        publish_in(store, folder, artifact=artifact)
    store.promote("digits", 2)
    return store


def test_a_deleted_version_leaves_a_tombstone_and_its_number(two: ModelStore) -> None:
    annotate(two.storage, "digits", 1, "ann", "old")
    found = delete_version(two, "digits", 1, "key:ops", "too old")
    assert two.versions("digits") == [2]
    assert tombstone_of(two.storage, "digits", 1) == found
    assert (found.who, found.why, found.semver) == ("key:ops", "too old", "1.0.0")
    assert set(two.storage.list("digits/1/")) == {"digits/1/claim.json"}
    assert annotations_of(two.storage, "digits", 1).description == ""
    newest = two.history("digits")[-1]
    assert (newest.aliases, newest.why) == ({"production": 2}, "version 1 deleted: too old")
    with pytest.raises(VersionDeletedError, match="too old"):
        delete_version(two, "digits", 1)
    with pytest.raises(VersionDeletedError, match="too old"):
        two.promote("digits", 1)


def test_a_version_that_an_alias_names_is_kept(two: ModelStore) -> None:
    with pytest.raises(VersionInUseError, match="the alias 'production' names"):
        delete_version(two, "digits", 2)
    assert two.versions("digits") == [1, 2]
    with pytest.raises(VersionNotFoundError):
        delete_version(two, "digits", 9)


def test_a_promotion_in_the_middle_of_a_deletion_wins(
    two: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: no alias ever names a deleted version, whoever comes first."""
    create = Storage.create
    promoted: list[Pointers] = []

    def promote_first(self: Storage, path: str, data: bytes) -> None:
        if path == "digits/pointers/00000002.json" and not promoted:
            promoted.append(Pointers.model_validate_json(data))
            moved = promoted[0].model_copy(update={"aliases": {"production": 2, "canary": 1}})
            create(self, path, moved.to_json())
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", promote_first)
    with pytest.raises(ConflictError):
        delete_version(two, "digits", 1)
    assert two.manifest("digits", 1).version == 1
    assert tombstone_of(two.storage, "digits", 1) is None
    two.promote("digits", 1, "beta")


def test_a_part_that_a_pipeline_names_by_number_is_kept(store: ModelStore) -> None:
    publish_parts(store.url)
    graph = json.loads(json.dumps(READER).replace("@^1", "@1"))
    publish_graph(store.url, graph=graph)
    with pytest.raises(VersionInUseError, match="is a part of the pipeline 'reader'"):
        delete_version(store, "finder", 1)
    assert store.versions("finder") == [1]


def test_a_part_of_a_pipeline_that_an_alias_names_is_kept(store: ModelStore) -> None:
    publish_parts(store.url)
    old = json.loads(json.dumps(READER).replace("@^1", "@1"))
    publish_graph(store.url, graph=old)
    store.promote("reader", 1)
    publish_graph(store.url)
    with pytest.raises(VersionInUseError, match="is a part of the pipeline 'reader' 1"):
        delete_version(store, "finder", 1)
    assert store.versions("finder") == [1]


def test_a_deletion_lists_its_own_model_alone(
    two: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in(two, folder, "other")
    two.promote("digits", 2)
    listed: list[str] = []

    def listing(storage: Storage, folder: str = "") -> Sequence[str]:
        listed.append(folder)
        return names(storage, folder)

    names = Storage.names
    monkeypatch.setattr(Storage, "names", listing)
    delete_version(two, "digits", 1)
    if two.is_local:
        assert listed.count("other") == 1  # its newest version; nothing is looked for in others
        assert listed.count("other/pointers") == 1


def test_annotations_change_and_are_limited(two: ModelStore) -> None:
    storage = two.storage
    annotate(storage, "digits", None, "ann", "reads digits", {"team": "vision", "tier": "1"})
    annotate(storage, "digits", 2, "ann", tags={"dataset": "mnist"})
    found = annotate(storage, "digits", None, "bob", tags={"tier": None, "owner": "ann"})
    assert found.tags == {"team": "vision", "owner": "ann"}
    assert (found.description, found.who) == ("reads digits", "bob")
    assert annotations_of(storage, "digits", None) == found
    with pytest.raises(AnnotationError, match="tags"):
        annotate(storage, "digits", None, "ann", tags={str(n): "x" for n in range(65)})
    with pytest.raises(AnnotationError, match="description"):
        annotate(storage, "digits", None, "ann", "x" * 4097)
    assert annotations_of(storage, "digits", None) == found


def test_annotations_that_could_not_be_read_again_are_refused(two: ModelStore) -> None:
    storage = two.storage
    annotate(storage, "digits", None, "ann", "," * 4000)
    with pytest.raises(AnnotationError, match="give shorter ones"):
        annotate(storage, "digits", None, "ann", tags={str(n): "," * 200 for n in range(10)})
    assert annotations_of(storage, "digits", None).description == "," * 4000
    storage.replace("digits/annotations/model.json", b"damaged")
    assert annotate(storage, "digits", None, "ann", "new").description == "new"


def test_a_deletion_that_was_cut_off_is_completed(
    two: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Storage, path: str) -> None:
        raise StorageError(f"cannot delete {path}")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", fail)
        with pytest.raises(StorageError):
            delete_version(two, "digits", 1, "ann", "old")
    assert two.versions("digits") == [1, 2]
    assert delete_version(two, "digits", 1).why == "old"
    assert two.versions("digits") == [2]
    with pytest.raises(VersionDeletedError):
        delete_version(two, "digits", 1)


def test_a_retry_beside_a_deletion_leaves_no_alias_of_it(
    two: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a deletion's tombstone and its generation, a retry runs, and a promotion ends."""
    create, current, is_between = Storage.create, two.pointers("digits"), [True]

    def in_between(self: Storage, path: str, data: bytes) -> None:
        if path == "digits/pointers/00000002.json" and is_between:
            is_between.clear()
            assert delete_version(two, "digits", 1).who == "ann"
            with contextlib.suppress(ConflictError):
                two.following("digits", {"production": 1}, "began before", current)
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", in_between)
    with contextlib.suppress(ConflictError):
        delete_version(two, "digits", 1, "ann", "old")
    newest = two.pointers("digits")
    assert newest is not None
    assert newest.aliases == {"production": 2}
    assert tombstone_of(two.storage, "digits", 1) is not None
    assert two.versions("digits") == [2]


def test_a_deletion_that_is_taken_back_keeps_the_tombstone_of_removed_files(
    two: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion takes the first deletion back; it is undone, and a retry removes the files."""
    create, delete, steps = Storage.create, Storage.delete, ["promotion", "retry"]

    def promote_first(self: Storage, path: str, data: bytes) -> None:
        if path == "digits/pointers/00000002.json" and "promotion" in steps:
            steps.remove("promotion")
            two.following("digits", {"production": 1}, "first", two.pointers("digits"))
        create(self, path, data)

    def retry_first(self: Storage, path: str) -> None:
        if "tombstones" in path and steps == ["retry"]:
            steps.clear()
            two.promote("digits", 2)
            delete_version(two, "digits", 1)
        delete(self, path)

    monkeypatch.setattr(Storage, "create", promote_first)
    monkeypatch.setattr(Storage, "delete", retry_first)
    with pytest.raises(ConflictError, match="a promotion came first"):
        delete_version(two, "digits", 1)
    assert two.versions("digits") == [2]
    assert tombstone_of(two.storage, "digits", 1) is not None


def test_a_deletion_that_others_keep_from_its_generation_says_so(
    two: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = iter(range(deletion.MAX_TRIES))
    create = Storage.create

    def move_first(self: Storage, path: str, data: bytes) -> None:
        if "/pointers/" in path and b"deleted" in data and next(moves, None) is not None:
            create(self, path, data.replace(b"deleted", b"moved"))
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", move_first)
    with pytest.raises(ConflictError, match="16 times"):
        delete_version(two, "digits", 1, why="old")
    assert delete_version(two, "digits", 1).why == "old"


@pytest.mark.parametrize("store_url", ["folder"], indirect=True)
def test_the_number_of_aliases_is_limited(two: ModelStore) -> None:
    for number in range(MAX_ALIASES - 1):
        two.promote("digits", 1, f"alias-{number}")
    with pytest.raises(BadNameError, match="would have 101 aliases, over 100"):
        two.promote("digits", 1, "one-more")
    two.promote("digits", 1)
    assert len(two.history("digits")[-1].aliases) == MAX_ALIASES


def test_the_newest_of_a_model_is_that_of_its_listing(two: ModelStore) -> None:
    assert newest_of(two.storage, "digits") == NewestOfModel(2, 1)
    two.claim("digits", 10, "a publisher that was killed")
    two.promote("digits", 1, "canary")
    assert newest_of(two.storage, "digits") == NewestOfModel(2, 2)
    assert newest_of(two.storage, "none") is None
    assert model_names(two.storage) == ["digits"]
