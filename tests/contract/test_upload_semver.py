"""Semantic versions of uploads: those of deleted versions do not come back."""

from pathlib import Path

import pytest

from model_store.errors import VersionDeletedError
from model_store.manifest import Manifest
from model_store.records.deletion import delete_version
from model_store.store import ModelStore
from model_store.transfer import copy_version
from model_store.uploads.uploads import Uploads
from tests.fixtures.store_versions import publish_in
from tests.fixtures.uploads import declared, send_missing, uploads_into, version_bytes

OWNER = "key:ci"


def push(uploads: Uploads, files: dict[str, bytes], version: int) -> Manifest:
    state = uploads.begin(declared(files, version=version), OWNER)
    send_missing(uploads, state, files)
    return uploads.finish(state.id, OWNER)[0]


def test_the_semantic_version_of_a_deleted_version_does_not_come_back(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    place = Path(store.url, ".uploads") if store.is_local else tmp_path / "uploads"
    uploads, source = uploads_into(store, place), ModelStore(str(tmp_path / "source"))
    publish_in(source, folder, artifact=b"first")
    publish_in(source, folder, artifact=b"second")
    assert push(uploads, version_bytes(source, "digits", 1), version=1).semver == "1.0.0"
    second = version_bytes(source, "digits", 2)
    deleted = push(uploads, second, version=2).semver
    delete_version(store, "digits", 2, "ops", "leaked")
    other = ModelStore(str(folder / "other"))
    copy_version(source, other, "digits", 1)
    other.claim("digits", 2, "the number of the deleted version")
    publish_in(other, folder, artifact=b"third")
    third = version_bytes(other, "digits", 3)
    assert other.manifest("digits", 3).semver == deleted
    state = uploads.begin(declared(third, version=3), OWNER)
    assert state.taken_semvers == (deleted, "1.0.0")
    send_missing(uploads, state, third)
    with pytest.raises(VersionDeletedError, match=f"{deleted} was version 2 of 'digits'"):
        uploads.finish(state.id, OWNER)
    assert store.versions("digits") == [1]
