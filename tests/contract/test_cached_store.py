"""A bucket with a cache on this machine's disk, while the bucket answers and while it is away."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_store.cache.cached_store import CachedStore
from model_store.cache.file_cache import Outcome
from model_store.errors import (
    DigestMismatchError,
    SignatureMissingError,
    StorageError,
    VersionNotFoundError,
)
from model_store.golden import read_golden
from model_store.manifest import Manifest
from model_store.records.deletion import delete_version
from model_store.signatures.key_folder import TrustedKey
from model_store.store import ModelStore, Sign
from tests.contract.test_store import flip_a_bit
from tests.fixtures.faulty_proxy import FaultyProxy, faulty_proxy
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import draft_in, publish_in


@dataclass
class Opened:
    """A store of a process, by way of the proxy, and what its cache counted."""

    store: CachedStore
    counted: list[Outcome]

    def read(self) -> list[bytes]:
        manifest = self.store.manifest("digits", 1)
        return [self.store.read_file(manifest, entry) for entry in manifest.all_files()]


@pytest.fixture
def direct(s3_url: str) -> ModelStore:
    """Opens the bucket itself."""
    return ModelStore(s3_url)


@pytest.fixture
def proxy(direct: ModelStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with faulty_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def ada(tmp_path: Path) -> TrustedKey:
    return key_in(tmp_path / "ada", "ada")


@pytest.fixture
def sign(ada: TrustedKey, tmp_path: Path) -> Sign:
    return signer_in(tmp_path / "ada")


@pytest.fixture
def published(direct: ModelStore, folder: Path, sign: Sign) -> Manifest:
    """Publishes version 1 of digits, signed by Ada, with production on it."""
    manifest = direct.publish(draft_in(folder), folder, sign=sign)
    direct.promote("digits", 1)
    return manifest


def opened(direct: ModelStore, tmp_path: Path) -> Opened:
    counted: list[Outcome] = []
    return Opened(CachedStore(direct.url, tmp_path / "cache", 2**20, counted.append), counted)


def started(direct: ModelStore, tmp_path: Path, ada: TrustedKey) -> Opened:
    """Reads all that a server reads that loads version 1."""
    first = opened(direct, tmp_path)
    assert list(first.store.listing()) == ["digits"]
    first.store.pointers_at("digits", 1)
    first.read()
    first.store.signer(first.store.manifest("digits", 1), [ada])
    return first


def test_files_are_fetched_once_by_all_processes(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path
) -> None:
    first, second = opened(direct, tmp_path), opened(direct, tmp_path)
    found = first.read()
    assert found == second.read()
    files = len(published.all_files())
    assert first.counted == ["miss"] * files
    assert second.counted == ["hit"] * files
    assert not second.store.is_local


def test_a_damaged_file_of_the_bucket_is_never_cached(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path
) -> None:
    flip_a_bit(direct, "digits/1/model.onnx")
    with pytest.raises(DigestMismatchError):
        opened(direct, tmp_path).read()
    assert published.artifacts[0].file.sha256 not in os.listdir(tmp_path / "cache/files")


def test_all_that_a_load_needs_is_known_while_the_store_is_away(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path, ada: TrustedKey
) -> None:
    before = started(direct, tmp_path, ada).read()
    asked, proxy.fault = proxy.refused, "denied"
    after = opened(direct, tmp_path)
    with pytest.raises(StorageError, match="403"):
        after.store.listing()
    assert after.store.last_listing() == direct.listing()
    assert after.store.listing("digits") == direct.listing("digits")
    assert after.store.listing("letters") == {}
    assert after.store.is_away
    asked = proxy.refused
    assert after.store.manifest("digits", 1) == published
    assert after.store.pointers_at("digits", 1).aliases == {"production": 1}
    assert after.store.signer(published, [ada]) == ada
    assert after.read() == before
    assert read_golden(after.store, published).rows
    assert proxy.refused == asked
    with pytest.raises(StorageError, match="the store is away, and the cache does not have it"):
        after.store.manifest("digits", 2)
    proxy.fault = "none"
    after.store.follow()
    with pytest.raises(VersionNotFoundError):
        after.store.manifest("digits", 2)


def test_a_version_that_is_loaded_can_be_read_again_while_the_store_fails(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path, ada: TrustedKey
) -> None:
    first = started(direct, tmp_path, ada)
    proxy.fault = "denied"
    assert first.store.signer(first.store.manifest("digits", 1), [ada]) == ada
    assert len(first.read()) == len(published.all_files())


def test_nothing_is_known_of_a_store_that_was_never_listed(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path
) -> None:
    store = opened(direct, tmp_path).store
    store.manifest("digits", 1)
    assert store.last_listing() is None
    assert not store.is_away
    other = CachedStore(f"{direct.url}/other", tmp_path / "cache", 2**20, lambda _: None)
    store.listing()
    assert other.last_listing() is None


def test_a_version_known_to_be_deleted_is_not_known_any_more(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path, ada: TrustedKey
) -> None:
    publish_in(direct, tmp_path / "second")
    first = started(direct, tmp_path, ada)
    direct.promote("digits", 2)
    delete_version(direct, "digits", 1)
    first.store.listing()
    proxy.fault = "denied"
    after = opened(direct, tmp_path).store
    listed = after.last_listing()
    assert listed is not None
    assert listed["digits"].versions == (2,)
    with pytest.raises(StorageError):
        after.manifest("digits", 1)


def test_a_signature_that_was_removed_from_the_store_is_not_recalled(
    direct: ModelStore, published: Manifest, proxy: FaultyProxy, tmp_path: Path, ada: TrustedKey
) -> None:
    first = started(direct, tmp_path, ada)
    direct.storage.delete("digits/1/model.sig")
    with pytest.raises(SignatureMissingError):
        first.store.signer(published, [ada])
    proxy.fault = "denied"
    with pytest.raises(StorageError):
        first.store.signer(published, [ada])
