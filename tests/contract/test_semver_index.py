"""Semantic versions: numbers given to versions, refusals, and results of ranges."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.errors import (
    BumpTooSmallError,
    ManifestError,
    StorageError,
    VersionDeletedError,
    VersionNotFoundError,
)
from model_store.golden import GoldenRows
from model_store.manifest import Golden, Manifest
from model_store.records.deletion import delete_version
from model_store.semver.semver import Bump, parse_range
from model_store.semver.semver_index import MOST_TAKEN, fitting, take, taken_semvers
from model_store.store import ModelStore
from model_store.transfer import copy_version
from tests.fixtures.store_versions import draft_in, entry_in

WEIGHTS = "checkpoint.safetensors"


def publish(
    store: ModelStore,
    folder: Path,
    bump: Bump | None = None,
    weights: bytes = b"weights",
    **changes: Any,
) -> Manifest:
    files = (entry_in(folder, WEIGHTS, weights),)
    return store.publish(draft_in(folder, files=files, **changes), folder, bump=bump)


def found(store: ModelStore, text: str) -> str | None:
    wanted = parse_range(text)
    assert wanted is not None
    return fitting(store, "digits", wanted, text).semver


def test_the_least_that_must_rises_and_more_if_asked_for(store: ModelStore, folder: Path) -> None:
    larger = draft_in(folder).signature.model_copy(update={"max_batch_size": 32})
    published = [
        publish(store, folder),
        publish(store, folder),
        publish(store, folder, weights=b"others"),
        publish(store, folder, "minor", weights=b"others"),
        publish(store, folder, weights=b"others", signature=larger),
        publish(store, folder, "major", weights=b"others", signature=larger),
    ]
    expected = ["1.0.0", "1.0.1", "1.1.0", "1.2.0", "2.0.0", "3.0.0"]
    assert [manifest.semver for manifest in published] == expected
    assert [store.manifest("digits", n).semver for n in range(1, 7)] == expected


def test_less_than_what_must_is_refused_before_anything_is_written(
    store: ModelStore, folder: Path
) -> None:
    assert publish(store, folder, "patch").semver == "1.0.0", "there is nothing to compare with"
    before = store.storage.list()
    with pytest.raises(BumpTooSmallError) as refused:
        publish(store, folder, "patch", weights=b"others")
    assert str(refused.value) == (
        "a patch version of 'digits' was asked for, and it takes a minor one after 1 (1.0.0): the "
        "weights changed; set bump to minor, or leave it out"
    )
    other = draft_in(folder).signature.model_copy(update={"max_batch_size": 2})
    with pytest.raises(BumpTooSmallError, match="takes a major one"):
        publish(store, folder, "minor", weights=b"others", signature=other)
    assert store.storage.list() == before


def test_no_two_versions_get_the_same(store: ModelStore, folder: Path) -> None:
    publish(store, folder)
    folders = [folder / str(n) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        published = list(pool.map(lambda own: publish(store, own), folders))
    assert len({manifest.semver for manifest in published}) == 4
    assert all(manifest.semver and manifest.semver.startswith("1.0.") for manifest in published)


def test_the_newest_that_fits_is_found(store: ModelStore, folder: Path) -> None:
    for weights in (b"a", b"a", b"b"):
        publish(store, folder, weights=weights)  # 1.0.0, 1.0.1, 1.1.0
    publish(store, folder, "major", weights=b"b")
    store.storage.create("digits/semver/1.9.0.json", b'{"version": 9}')  # its publisher died
    store.storage.create("digits/semver/1.8.0.json", b'{"version": 1}')  # no manifest confirms it
    store.storage.create("digits/semver/notes.txt", b"a file the store does not know")
    wanted = ["^1", "~1.0", "~1", "1.0.0", "^1.0.1", "^2"]
    texts = [found(store, text) for text in wanted]
    assert texts == ["1.1.0", "1.0.1", "1.1.0", "1.0.0", "1.1.0", "2.0.0"]
    with pytest.raises(VersionNotFoundError, match=r"fits \^3; it has: 2\.0\.0, 1\.9\.0, 1\.8\.0"):
        found(store, "^3")
    store.storage.create("digits/semver/5.0.0.json", b"{}")
    with pytest.raises(ManifestError, match=r"semver/5\.0\.0\.json is damaged"):
        found(store, "^5")


def test_versions_of_before_have_none_and_are_read(store: ModelStore, folder: Path) -> None:
    old = publish(store, folder)
    store.storage.delete("digits/semver/1.0.0.json")
    bare = old.model_copy(update={"semver": None})
    store.storage.replace("digits/1/manifest.json", bare.to_json())
    assert b"semver" not in bare.to_json()
    assert store.manifest("digits", 1) == bare
    assert publish(store, folder, "patch").semver == "1.0.0", "counting begins"
    assert publish(store, folder).semver == "1.0.1"


def test_what_the_version_before_answered_must_be_known_for_a_patch(
    store: ModelStore, folder: Path
) -> None:
    publish(store, folder)
    store.storage.replace("digits/1/golden.safetensors", b"damaged")
    assert publish(store, folder).semver == "1.1.0"
    store.storage.replace("digits/2/manifest.json", b"damaged")
    assert publish(store, folder).version == 3, "a damaged one keeps nobody from publishing"


def test_the_same_weights_with_other_answers_are_another_network(
    store: ModelStore, folder: Path
) -> None:
    publish(store, folder)
    rows = GoldenRows(
        {"image": np.zeros((8, 1, 8, 8), np.float32)}, {"logits": np.ones((8, 10), np.float32)}
    )
    golden = Golden(file=entry_in(folder, "other.safetensors", rows.to_bytes()), rows=8)
    with pytest.raises(BumpTooSmallError, match="its checkpoint answers its golden rows otherwise"):
        publish(store, folder, "patch", golden=golden)
    assert publish(store, folder, golden=golden).semver == "1.1.0"


def test_what_fails_to_publish_gives_its_semantic_version_back(
    store: ModelStore, folder: Path
) -> None:
    draft = draft_in(folder)
    (folder / "report.json").unlink()
    with pytest.raises(StorageError):
        store.publish(draft, folder)
    assert publish(store, folder).semver == "1.0.0"


def test_a_copy_is_found_too(store: ModelStore, folder: Path, tmp_path: Path) -> None:
    publish(store, folder)
    target = ModelStore(str(tmp_path / "target"))
    copy_version(store, target, "digits", 1)
    assert found(target, "^1") == "1.0.0"
    assert publish(target, folder).semver == "1.0.1"


def test_nobody_gets_the_semantic_version_of_a_deleted_version_again(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    publish(store, folder)
    publish(store, folder)
    other = ModelStore(str(tmp_path / "other"))
    copy_version(store, other, "digits", 1)
    other.claim("digits", 2, "the number of a deleted version")
    delete_version(store, "digits", 2, "ops")
    assert publish(other, folder).semver == "1.0.1", "this store knows of no other"
    before = store.storage.list()
    refusal = r"1\.0\.1 was version 2 of 'digits', which was deleted at .* by ops"
    with pytest.raises(VersionDeletedError, match=refusal):
        copy_version(other, store, "digits", 3)
    assert store.storage.list() == before
    again = publish(store, folder)
    assert (again.version, again.semver) == (3, "1.0.2")


def test_a_copy_takes_the_entry_of_a_publisher_that_failed(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    other = ModelStore(str(tmp_path / "other"))
    publish(other, folder)
    store.storage.create("digits/semver/1.0.0.json", b'{"version": 9}')
    copy_version(other, store, "digits", 1)
    assert found(store, "1.0.0") == "1.0.0"


def test_semantic_versions_that_another_store_has_given_are_left_out(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    for weights in (b"a", b"b", b"c"):
        publish(store, folder, weights=weights)  # 1.0.0, 1.1.0, 1.2.0
    taken = taken_semvers(store.storage, "digits")
    assert taken == ("1.2.0", "1.1.0", "1.0.0")
    other = ModelStore(str(tmp_path / "other"))
    copy_version(store, other, "digits", 1)
    take(other.storage, "digits", [*taken, "../x", "1.3"], "1.0.0", 4)
    assert publish(other, folder, weights=b"d").semver == "1.3.0"


def test_the_greatest_semantic_versions_are_told(store: ModelStore) -> None:
    for minor in range(MOST_TAKEN + 2):
        store.storage.create(f"digits/semver/1.{minor}.0.json", b'{"version": 1}')
    taken = taken_semvers(store.storage, "digits")
    assert (len(taken), taken[0], taken[-1]) == (MOST_TAKEN, f"1.{MOST_TAKEN + 1}.0", "1.2.0")


def test_a_copy_leaves_the_entry_of_a_version_that_is_there(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    publish(store, folder)
    publish(store, folder)
    other = ModelStore(str(tmp_path / "other"))
    copy_version(store, other, "digits", 1)
    other.claim("digits", 2, "another publisher")
    assert publish(other, folder).semver == "1.0.1"
    copy_version(other, store, "digits", 3)
    wanted = parse_range("1.0.1")
    assert wanted is not None
    assert fitting(store, "digits", wanted, "1.0.1").version == 2
