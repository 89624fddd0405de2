"""The last listing of a store and its documents, as a folder keeps them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.cache.known_documents import KnownDocuments
from model_store.cache.private_folder import PrivateFolder
from model_store.listing import ModelListing

MANIFEST, SIGNATURE, POINTERS = "m/1/manifest.json", "m/1/model.sig", "m/pointers/00000002.json"
LISTED = {"m": ModelListing((1, 2), (1, 2, 3), (1, 2))}


@pytest.fixture
def known(tmp_path: Path) -> KnownDocuments:
    return KnownDocuments(PrivateFolder(tmp_path / "known"))


def test_documents_of_versions_come_back_and_nothing_else_is_kept(known: KnownDocuments) -> None:
    for path in (MANIFEST, SIGNATURE, POINTERS, "m/1/model.onnx", "m/../x", "m/1/claim.json"):
        known.remember(path, path.encode())
    found = {path: known.recall(path) for path in (MANIFEST, SIGNATURE, POINTERS, "m/1/model.onnx")}
    assert found == {
        MANIFEST: MANIFEST.encode(), SIGNATURE: SIGNATURE.encode(), POINTERS: POINTERS.encode(),
        "m/1/model.onnx": None,
    }  # fmt: skip
    assert known.recall(MANIFEST, max_bytes=3) is None
    known.forget(SIGNATURE)
    assert known.recall(SIGNATURE) is None


def test_a_document_that_was_changed_or_renamed_is_removed(
    known: KnownDocuments, tmp_path: Path
) -> None:
    for path in (MANIFEST, POINTERS):
        known.remember(path, b"a document of a store")
    manifest, pointers = sorted((tmp_path / "known").iterdir())
    data = bytearray(manifest.read_bytes())
    data[-1] ^= 1
    manifest.write_bytes(bytes(data))
    assert known.recall(MANIFEST) is None
    assert not manifest.exists()
    pointers.rename(manifest)
    assert known.recall(MANIFEST) is None


def test_documents_of_what_a_listing_lacks_are_removed(known: KnownDocuments) -> None:
    known.remember_listing(LISTED)
    kept = [MANIFEST, "m/2/manifest.json", POINTERS]
    for path in [*kept, "n/1/manifest.json"]:
        known.remember(path, b"{}")
    known.remember_listing({"m": ModelListing((2,), (1, 2, 3), (1, 2))})
    assert [known.recall(path) for path in kept] == [None, b"{}", b"{}"]
    assert known.recall("n/1/manifest.json") is None


numbers = st.lists(st.integers(1, 10**9 - 1), max_size=5).map(tuple)
listings = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
    st.builds(ModelListing, versions=numbers, claimed=numbers, generations=numbers),
    max_size=5,
)


@given(listing=listings)
def test_a_listing_comes_back_in_another_process(
    listing: dict[str, ModelListing], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("known") / "folder"
    KnownDocuments(PrivateFolder(folder)).remember_listing(listing)
    assert KnownDocuments(PrivateFolder(folder)).recall_listing() == listing


@pytest.mark.parametrize("damage", [b"", b"{}", b"x" * 200])
def test_a_damaged_listing_is_none(known: KnownDocuments, tmp_path: Path, damage: bytes) -> None:
    assert known.recall_listing() is None
    known.remember_listing(LISTED)
    assert known.listed_s() > 0
    (tmp_path / "known/listing").write_bytes(damage)
    assert known.recall_listing() is None
