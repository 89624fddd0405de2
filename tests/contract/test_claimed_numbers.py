"""Numbers that a publisher claimed and left without a version, as uploads meet them."""

from pathlib import Path

import pytest

from model_store.errors import ConflictError
from model_store.records.claim import owner_of_copy
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in
from tests.fixtures.uploads import declared, opened, send_missing, uploads_into, version_bytes

OWNER = "key:ci"


@pytest.fixture
def files(tmp_path: Path, folder: Path) -> dict[str, bytes]:
    """Returns the files of a version."""
    source = ModelStore(str(tmp_path / "source"))
    publish_in(source, folder)
    return version_bytes(source, "digits", 1)


def test_an_upload_of_a_number_that_another_publisher_claimed_is_not_begun(
    store: ModelStore, files: dict[str, bytes], tmp_path: Path
) -> None:
    uploads = uploads_into(store, tmp_path / "uploads")
    store.claim("digits", 1, "ann, who failed")
    with pytest.raises(ConflictError, match=r"version 1 .* taken by another .*ann, who failed"):
        uploads.begin(declared(files), OWNER)
    assert not (tmp_path / "uploads").exists() or opened(tmp_path / "uploads") == []


def test_a_number_that_was_claimed_for_the_same_manifest_is_completed(
    store: ModelStore, files: dict[str, bytes], tmp_path: Path
) -> None:
    uploads = uploads_into(store, tmp_path / "uploads")
    declaration = declared(files)
    store.claim("digits", 1, owner_of_copy(declaration.manifest_sha256))
    state = uploads.begin(declaration, OWNER)
    send_missing(uploads, state, files)
    uploads.finish(state.id, OWNER)
    assert store.versions("digits") == [1]
