"""Pruning a store, in a folder and in a bucket."""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from model_store.errors import (
    ConflictError,
    ManifestFromFutureError,
    ModelNotFoundError,
    StorageError,
    VersionInUseError,
)
from model_store.records.deletion import delete_version
from model_store.records.tombstone import tombstone_of
from model_store.retention import leftovers
from model_store.retention.pruning import Pruned, Pruner
from model_store.retention.rules import RetentionRule, VersionKey
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from model_store.transfer import copy_version
from tests.fixtures.pipelines import publish_graph, publish_parts
from tests.fixtures.store_versions import publish_in, rollback
from tests.fixtures.uploads import declared, uploads_into, version_bytes

ONE = RetentionRule(keep_newest=1, keep_days=0)


def held(*keys: VersionKey) -> Mapping[VersionKey, Sequence[str]]:
    return {key: ["http://server"] for key in keys}


def pruner(store: ModelStore, *keys: VersionKey, rule: RetentionRule = ONE) -> Pruner:
    return Pruner(store, rule, None, lambda: held(*keys))


def pruned(store: ModelStore, *keys: VersionKey) -> list[VersionKey]:
    found: list[Pruned] = []
    pruner(store, *keys).delete(found.append)
    assert [one.refusal for one in found] == [""] * len(found)
    return [one.key for one in found]


@pytest.fixture
def five(store: ModelStore, folder: Path) -> ModelStore:
    """Returns a store with five versions of digits, of which 1 is a canary and 3 is live."""
    for number in range(5):
        publish_in(store, folder, artifact=f"bytes {number}".encode())
    store.promote("digits", 1, "canary")
    store.promote("digits", 3)
    return store


def test_what_is_used_stays_and_the_rest_leaves_tombstones(five: ModelStore) -> None:
    plan = pruner(five, ("digits", 2)).plan()
    assert {one.facts.version: one.reasons for one in plan.decisions} == {
        1: ("alias canary",),
        2: ("held by http://server",),
        3: ("alias production",),
        4: (),
        5: ("among the newest 1",),
    }
    assert five.versions("digits") == [1, 2, 3, 4, 5]
    before = five.storage.list("digits/4/")
    size = sum(size for path, size in before.items() if not path.endswith("claim.json"))
    assert (plan.sizes["digits", 4], plan.freed_bytes) == (size, size)
    assert pruned(five, ("digits", 2)) == [("digits", 4)]
    assert five.versions("digits") == [1, 2, 3, 5]
    tombstone = tombstone_of(five.storage, "digits", 4)
    assert tombstone is not None
    assert tombstone.why.startswith("retention: not used, not among the newest 1")
    assert tombstone.who
    assert pruned(five, ("digits", 2)) == []


def test_young_versions_stay(five: ModelStore) -> None:
    week = RetentionRule(keep_newest=1, keep_days=7)
    assert all(one.is_kept for one in pruner(five, rule=week).decisions())


def test_the_newest_part_of_each_pipeline_that_stays_is_kept(store: ModelStore) -> None:
    for scale in (10.0, 11.0, 12.0):
        publish_parts(store.url, scale)
    publish_graph(store.url)
    assert [one.facts.key for one in pruner(store).decisions() if not one.is_kept] == [
        ("finder", 1), ("finder", 2), ("scorer", 1), ("scorer", 2)
    ]  # fmt: skip
    reasons = {one.facts.key: one.reasons for one in pruner(store).decisions()}
    assert "part of the pipeline reader 1" in reasons["scorer", 3]


def test_pipelines_go_before_their_parts(store: ModelStore) -> None:
    for scale in (10.0, 11.0):
        publish_parts(store.url, scale)
        publish_graph(store.url)
    assert pruned(store) == [("reader", 1), ("finder", 1), ("scorer", 1)]


def test_an_alias_that_is_set_while_versions_are_deleted_wins(five: ModelStore) -> None:
    told: list[Pruned] = []

    def promote_the_next(one: Pruned) -> None:
        told.append(one)
        if one.key == ("digits", 2):
            five.promote("digits", 4, "canary")

    Pruner(five, ONE, None, held).delete(promote_the_next)
    assert [(one.key[1], bool(one.refusal)) for one in told] == [(2, False), (4, True)]
    assert five.versions("digits") == [1, 3, 4, 5]


def test_a_rollback_finds_its_version_after_pruning(five: ModelStore) -> None:
    five.promote("digits", 5)
    five.promote("digits", 2, "canary")
    five.promote("digits", 5, "canary")
    reasons = {one.facts.version: one.reasons for one in pruner(five).decisions()}
    assert reasons[2] == ("a rollback of canary restores it",)
    assert reasons[3] == ("a rollback of production restores it",)
    assert pruned(five) == [("digits", 1), ("digits", 4)]
    assert rollback(five, "digits").aliases == {"production": 3, "canary": 5}
    assert rollback(five, "digits", "canary").aliases == {"production": 3, "canary": 2}


def test_a_damaged_generation_hides_none_before_it(store: ModelStore, folder: Path) -> None:
    for number in range(3):
        publish_in(store, folder, artifact=f"bytes {number}".encode())
        store.promote("digits", number + 1)
    store.storage.replace("digits/pointers/00000002.json", b"{")
    reasons = {one.facts.version: one.reasons for one in pruner(store).decisions()}
    assert reasons[1] == ("a rollback of production restores it",)


def test_moves_between_plans_are_seen(five: ModelStore) -> None:
    one = pruner(five)

    def rollbacks() -> dict[int, tuple[str, ...]]:
        named = {found.facts.version: found.reasons for found in one.decisions()}
        return {n: reasons for n, reasons in named.items() if "a rollback" in " ".join(reasons)}

    assert rollbacks() == {}
    five.promote("digits", 4)
    assert rollbacks() == {3: ("a rollback of production restores it",)}
    five.promote("digits", 2, "canary")
    assert rollbacks() == {
        1: ("a rollback of canary restores it",),
        3: ("a rollback of production restores it",),
    }


def test_two_commands_at_once_delete_each_version_once(five: ModelStore) -> None:
    told: list[Pruned] = []

    def overtaken(one: Pruned) -> None:
        told.append(one)
        if len(told) == 1:
            assert pruned(five) == [("digits", 4)]

    pruner(five).delete(overtaken)
    assert [(one.key[1], one.refusal) for one in told] == [(2, ""), (4, "")]
    assert five.versions("digits") == [1, 3, 5]


def test_a_server_is_asked_again_before_each_deletion_of_an_old_plan(five: ModelStore) -> None:
    asked: list[int] = []

    def loading_two() -> Mapping[VersionKey, Sequence[str]]:
        asked.append(1)
        return held(("digits", 4)) if len(asked) > 1 else {}

    found: list[Pruned] = []
    Pruner(five, ONE, None, loading_two, plan_age_s=0).delete(found.append)
    assert [one.key for one in found] == [("digits", 2)]
    assert five.versions("digits") == [1, 3, 4, 5]


def test_a_prune_that_was_cut_off_goes_on(
    five: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed deletion has its tombstone, and perhaps some files; both kinds are completed."""
    delete = Storage.delete
    for stop_at in ("manifest.json", "golden.safetensors"):

        def stop(self: Storage, path: str, name: str = stop_at) -> None:
            if path.endswith(f"/{name}"):
                raise StorageError("killed")
            delete(self, path)

        version = 2 if stop_at == "manifest.json" else 4
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "delete", stop)
            with pytest.raises(StorageError, match="killed"):
                delete_version(five, "digits", version)
    assert five.versions("digits") == [1, 2, 3, 5]
    young = RetentionRule(keep_newest=9, keep_days=9)
    plan = pruner(five, rule=young).plan()
    assert [one.facts.version for one in plan.decisions if not one.is_kept] == [2]
    assert [one.reason for one in plan.leftovers] == ["its deletion was cut off"]
    assert plan.leftovers[0].folder == "digits/4"
    assert pruned(five) == [("digits", 2)]
    gone: list[leftovers.Leftover] = []
    pruner(five).remove_leftovers(gone.append)
    assert [one.folder for one in gone] == ["digits/4"]
    for version in (2, 4):
        left = {f"digits/{version}/claim.json"}
        assert set(five.storage.list(f"digits/{version}/")) == left


def test_a_live_version_with_a_tombstone_is_kept(five: ModelStore) -> None:
    """A deletion that was killed between tombstone and pointers may have lost to a promotion."""
    five.storage.create(
        "digits/tombstones/00000003.json",
        json.dumps(
            {"model": "digits", "version": 3, "manifest_sha256": "0" * 64, "who": "a",
             "when": "2026-11-01T00:00:00Z", "why": ""}
        ).encode(),
    )  # fmt: skip
    assert pruned(five) == [("digits", 2), ("digits", 4)]
    with pytest.raises(VersionInUseError, match="the alias 'production' names"):
        delete_version(five, "digits", 3)
    assert five.manifest("digits", 3).version == 3


def test_files_of_killed_publishers_are_collected_after_a_day(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in(store, folder)
    store.claim("digits", 2, "a publisher that was killed")
    store.storage.replace("digits/2/model.onnx", b"x" * 1000)
    store.claim("digits", 3, "one that was killed at once")
    if store.is_local:  # what a killed write leaves
        Path(store.url, "digits/2/golden.safetensors#1").write_bytes(b"x" * 500)
    assert pruner(store).plan().leftovers == ()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + leftovers.MIN_AGE_S + 60)
    plan = pruner(store).plan()
    (found,) = plan.leftovers
    assert found.folder == "digits/2"
    assert found.reason == "never published: its publisher was killed over a day ago"
    assert found.size_bytes == plan.freed_bytes == (1500 if store.is_local else 1000)
    pruner(store).remove_leftovers(lambda _: None)
    assert set(store.storage.details("digits/2/")) == {"digits/2/claim.json"}
    assert store.versions("digits") == [1]
    assert publish_in(store, folder, artifact=b"second") == 4


def test_a_copy_that_wakes_after_its_files_were_collected_publishes_nothing(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    source = ModelStore(str(tmp_path / "source"))
    publish_in(source, folder)

    def collect(file: str, _: int) -> None:
        store.storage.delete("digits/1/model.onnx")

    with pytest.raises(ConflictError, match="is gone from"):
        copy_version(source, store, "digits", 1, progress=collect)
    assert store.models() == []
    copy_version(source, store, "digits", 1)
    assert store.versions("digits") == [1]


def test_abandoned_uploads_are_collected(five: ModelStore, folder: Path, tmp_path: Path) -> None:
    if not five.is_local:
        assert leftovers.left_uploads(five) == []
        return
    uploads = uploads_into(five, Path(five.url, ".uploads"))
    files = {**version_bytes(five, "digits", 1), "model.onnx": b"x" * 777}
    old, new = (uploads.begin(declared(files, version=number), "key:ci").id for number in (8, 9))
    uploads.append(old, "key:ci", "model.onnx", 0, files["model.onnx"])
    day_ago = time.time() - leftovers.MIN_AGE_S - 60
    os.utime(Path(five.url, ".uploads", old, "lock"), (day_ago, day_ago))
    plan = pruner(five).plan()
    (found,) = plan.leftovers
    assert found.folder == f".uploads/{old}"
    assert found.size_bytes >= 777
    pruner(five).remove_leftovers(lambda _: None)
    assert {one for one in os.listdir(Path(five.url, ".uploads")) if one[0] != "."} == {new}


def test_linked_files_free_nothing_until_their_last_name_goes(five: ModelStore) -> None:
    if not five.is_local:
        return
    for version, others in ((2, 1), (4, 3)):
        path = Path(five.url, f"digits/{version}/golden.safetensors")
        shared = Path(five.url, f"digits/{others}/golden.safetensors")
        path.unlink()
        os.link(shared, path)
    plan = pruner(five).plan()
    golden = Path(five.url, "digits/1/golden.safetensors").stat().st_size
    whole = plan.sizes["digits", 2] + plan.sizes["digits", 4]
    assert plan.freed_bytes == whole - 2 * golden
    five.promote("digits", 5)
    five.promote("digits", 1)
    freed = pruner(five).plan().freed_bytes
    assert freed == whole + plan.sizes["digits", 3] - 2 * golden


def test_damage_keeps_what_it_may_hide(five: ModelStore) -> None:
    five.storage.replace("digits/2/manifest.json", b"damaged")
    reasons = {one.facts.version: one.reasons for one in pruner(five).decisions()}
    assert reasons[2] == ("its manifest is damaged, so that its age is unknown",)
    five.storage.replace("digits/pointers/00000002.json", b"damaged")
    assert all(one.is_kept for one in pruner(five).decisions())
    sealed = json.loads(five.storage.get("digits/4/manifest.json", 2**20))
    five.storage.replace(
        "digits/4/manifest.json", json.dumps({**sealed, "schema_version": 99}).encode()
    )
    with pytest.raises(ManifestFromFutureError):
        pruner(five).decisions()


def test_an_unknown_model_is_named(five: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean 'digits'"):
        Pruner(five, ONE, ["digts"], held).decisions()
    if five.is_local:
        shutil.rmtree(Path(five.url, "digits"))
        assert pruner(five).decisions() == []


def test_ages_are_of_the_publication(five: ModelStore) -> None:
    created = five.manifest("digits", 4).created_at
    week = RetentionRule(keep_newest=1, keep_days=7)
    sealed = json.loads(five.storage.get("digits/4/manifest.json", 2**20))
    sealed["created_at"] = (created - timedelta(days=8)).isoformat()
    five.storage.replace("digits/4/manifest.json", json.dumps(sealed).encode())
    gone = [one.facts.version for one in pruner(five, rule=week).decisions() if not one.is_kept]
    assert gone == [4]
