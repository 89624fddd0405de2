"""Uploads into a folder and into a bucket: resumed, checked, refused, collected."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_store.errors import (
    ConflictError,
    DigestMismatchError,
    ForeignKeyError,
    ManifestError,
    PipelinePartError,
    SignatureMissingError,
    StoreError,
    UnknownUploadError,
    UploadBusyError,
    UploadIncompleteError,
    UploadOffsetError,
    UploadRefusedError,
    VersionDeletedError,
)
from model_store.manifest import Manifest
from model_store.records.deletion import delete_version
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from model_store.uploads import placed_files
from model_store.uploads.shares import Shares
from model_store.uploads.uploads import MAX_SKIPPED, Uploads
from services.inference.trust import Trust
from tests.fixtures.pipelines import publish_graph, publish_parts
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import draft_in, publish_in
from tests.fixtures.uploads import (
    declared,
    opened,
    send_missing,
    uploads_into,
    version_bytes,
)

OWNER = "key:ci"


@pytest.fixture
def source(tmp_path: Path, folder: Path) -> ModelStore:
    """Returns a store with versions 1 and 2 of digits, which differ in one file."""
    found = ModelStore(str(tmp_path / "source"))
    publish_in(found, folder, artifact=b"first")
    publish_in(found, folder, artifact=b"second")
    return found


@pytest.fixture
def files(source: ModelStore) -> dict[str, bytes]:
    """Returns the files of version 1."""
    return version_bytes(source, "digits", 1)


@pytest.fixture
def uploads(store: ModelStore, tmp_path: Path) -> Uploads:
    """Returns uploads into the store, in its folder if it is one."""
    place = Path(store.url, ".uploads") if store.is_local else tmp_path / "uploads"
    return uploads_into(store, place)


def push(uploads: Uploads, files: dict[str, bytes], version: int = 1) -> Manifest:
    state = uploads.begin(declared(files, version=version), OWNER)
    send_missing(uploads, state, files)
    return uploads.finish(state.id, OWNER)[0]


def nothing_visible(store: ModelStore) -> bool:
    return store.models() == [] and not store.storage.list("digits/")


def test_an_upload_is_the_version_to_the_byte(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes], source: ModelStore
) -> None:
    assert push(uploads, files) == source.manifest("digits", 1)
    assert version_bytes(store, "digits", 1) == files
    state = uploads.begin(declared(files), OWNER)
    assert state.is_published


def test_a_second_version_sends_only_the_file_that_changed(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes], source: ModelStore
) -> None:
    push(uploads, files)
    second = version_bytes(source, "digits", 2)
    state = uploads.begin(declared(second, version=2), OWNER)
    assert set(state.linked) == {"golden.safetensors", "report.json"}
    missing = {name for name, data in second.items() if state.received[name] < len(data)}
    assert missing == {"manifest.json", "model.onnx"}
    send_missing(uploads, state, second)
    uploads.finish(state.id, OWNER)
    assert version_bytes(store, "digits", 2) == second
    assert version_bytes(store, "digits", 1) == files


def test_a_known_file_of_a_bucket_is_copied_in_pieces_once_space_is_reserved(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes], source: ModelStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if store.is_local:
        pytest.skip("a folder's files are linked")
    push(uploads, files)
    monkeypatch.setattr(placed_files, "PIECE_BYTES", 100)
    order: list[str] = []
    get_part, reserve = Storage.get_part, Shares.reserve

    def counted_part(self: Storage, path: str, start: int, size_bytes: int) -> bytes:
        order.append("part")
        assert size_bytes <= 100
        return get_part(self, path, start, size_bytes)

    def counted_reserve(
        self: Shares, upload_id: str, owner: str, size_bytes: int, missing_bytes: int
    ) -> None:
        order.append("reserve")
        assert missing_bytes == size_bytes
        reserve(self, upload_id, owner, size_bytes, missing_bytes)

    monkeypatch.setattr(Storage, "get_part", counted_part)
    monkeypatch.setattr(Shares, "reserve", counted_reserve)
    second = version_bytes(source, "digits", 2)
    state = uploads.begin(declared(second, version=2), OWNER)
    assert set(state.linked) == {"golden.safetensors", "report.json"}
    assert order[0] == "reserve"
    assert order.count("part") > 2
    send_missing(uploads, state, second)
    uploads.finish(state.id, OWNER)
    assert version_bytes(store, "digits", 2) == second


def test_a_damaged_file_of_a_bucket_is_sent_again(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes], source: ModelStore
) -> None:
    if store.is_local:
        pytest.skip("a folder's files are linked, and checked at the end")
    push(uploads, files)
    path = "digits/1/golden.safetensors"
    data = store.storage.get(path, 10**9)
    store.storage.replace(path, data[:-1] + bytes([data[-1] ^ 1]))
    second = version_bytes(source, "digits", 2)
    state = uploads.begin(declared(second, version=2), OWNER)
    assert state.linked == ("report.json",)
    assert state.received["golden.safetensors"] == 0


def test_a_file_of_the_store_is_never_written_to(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes]
) -> None:
    """A known file is linked: bytes behind its end would be in the published version, too."""
    push(uploads, files)
    manifest = b"another manifest"
    longer = declared({**files, "manifest.json": manifest}, version=2)
    changed = tuple(
        one.model_copy(update={"size_bytes": one.size_bytes + 4})
        if one.file == "model.onnx"
        else one
        for one in longer.files
    )
    state = uploads.begin(longer.model_copy(update={"files": changed}), OWNER)
    assert "model.onnx" not in state.linked
    uploads.append(state.id, OWNER, "model.onnx", 0, b"firstEVIL")
    same = uploads.begin(declared({**files, "manifest.json": b"a third"}, version=3), OWNER)
    for name in same.linked:
        with pytest.raises(UploadRefusedError, match=r"linked|declared|declare"):
            uploads.append(same.id, OWNER, name, len(files[name]), b"EVIL")
    assert version_bytes(store, "digits", 1) == files


def test_a_number_far_above_the_newest_is_refused(
    uploads: Uploads, files: dict[str, bytes]
) -> None:
    with pytest.raises(UploadRefusedError, match="far above the newest, 0; give a number up to"):
        uploads.begin(declared(files, version=MAX_SKIPPED + 1), OWNER)


def test_an_upload_goes_on_where_it_ended(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes], tmp_path: Path
) -> None:
    """Another process that sees the folder goes on; what is here is the size on disk."""
    state = uploads.begin(declared(files), OWNER)
    uploads.append(state.id, OWNER, "model.onnx", 0, b"fir")
    place = Path(store.url, ".uploads") if store.is_local else tmp_path / "uploads"
    other = uploads_into(store, place)
    again = other.begin(declared(files), OWNER)
    assert (again.id, again.received["model.onnx"]) == (state.id, 3)
    send_missing(other, again, files)
    other.finish(again.id, OWNER)
    assert version_bytes(store, "digits", 1) == files


def refusals(uploads: Uploads, files: dict[str, bytes]) -> Iterator[Callable[[], object]]:
    state = uploads.begin(declared(files), OWNER)
    yield lambda: uploads.append(state.id, OWNER, "model.onnx", 1, b"x")
    yield lambda: uploads.append(state.id, OWNER, "model.onnx", 0, b"x" * 100)
    yield lambda: uploads.append(state.id, OWNER, "other", 0, b"x")
    yield lambda: uploads.append(state.id, "key:other", "model.onnx", 0, b"x")
    yield lambda: uploads.append("../../etc", OWNER, "model.onnx", 0, b"x")
    yield lambda: uploads.finish(state.id, OWNER)
    yield lambda: uploads.finish(state.id, "key:other")


def test_calls_that_do_not_fit_change_nothing(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes]
) -> None:
    errors = []
    for refused in refusals(uploads, files):
        with pytest.raises(StoreError) as caught:
            refused()
        errors.append(caught.type)
    assert errors == [
        UploadOffsetError, UploadRefusedError, UploadRefusedError, UnknownUploadError,
        UnknownUploadError, UploadIncompleteError, UnknownUploadError,
    ]  # fmt: skip
    state = uploads.begin(declared(files), OWNER)
    assert set(state.received.values()) == {0}
    assert nothing_visible(store)


def test_a_flipped_bit_is_refused_and_only_its_file_is_sent_again(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes]
) -> None:
    state = uploads.begin(declared(files), OWNER)
    wrong = {**files, "model.onnx": bytes([files["model.onnx"][0] ^ 1]) + files["model.onnx"][1:]}
    send_missing(uploads, state, wrong)
    with pytest.raises(DigestMismatchError, match=r"'model.onnx' arrived with sha256"):
        uploads.finish(state.id, OWNER)
    assert nothing_visible(store)
    again = uploads.begin(declared(files), OWNER)
    missing = {name for name, data in files.items() if again.received[name] < len(data)}
    assert missing == {"model.onnx"}
    send_missing(uploads, again, files)
    uploads.finish(again.id, OWNER)
    assert version_bytes(store, "digits", 1) == files


def lying(files: dict[str, bytes], **changes: object) -> dict[str, bytes]:
    """Returns the files with changes in the entry of the artifact's file in the manifest."""
    manifest = json.loads(files["manifest.json"])
    manifest["artifacts"][0]["file"].update(changes)
    return {**files, "manifest.json": json.dumps(manifest).encode()}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda f: lying(f, size_bytes=4), UploadRefusedError, "says that 'model.onnx' has 4"),
        (lambda f: lying(f, size_bytes=2**60), UploadRefusedError, "says that 'model.onnx'"),
        (lambda f: lying(f, sha256="0" * 64), UploadRefusedError, "sha256 000000000000"),
        (lambda f: lying(f, file="gone"), UploadRefusedError, "names 'gone', which is not"),
        (lambda f: lying(f, file="../x"), ManifestError, "is not allowed"),
        (lambda f: {**f, "more.bin": b"x"}, UploadRefusedError, "does not name 'more.bin'"),
        (lambda f: {**f, "manifest.json": b"{}"}, ManifestError, "manifest.json"),
        (lambda f: {**f, "manifest.json": b"[" * 900}, ManifestError, "nested"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    store: ModelStore,
    uploads: Uploads,
    files: dict[str, bytes],
    change: Callable[[dict[str, bytes]], dict[str, bytes]],
    error: type[StoreError],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        push(uploads, change(files))
    assert nothing_visible(store)


def test_the_manifest_of_another_version_is_refused(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes]
) -> None:
    with pytest.raises(UploadRefusedError, match="is that of digits/1"):
        push(uploads, files, version=7)
    assert nothing_visible(store)


def test_of_two_pushes_of_one_number_one_wins(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes], source: ModelStore
) -> None:
    other = dict(version_bytes(source, "digits", 2))
    manifest = json.loads(other["manifest.json"])
    other["manifest.json"] = json.dumps({**manifest, "version": 1}).encode()
    versions = (files, other)
    states = [uploads.begin(declared(one), OWNER) for one in versions]
    for state, one in zip(states, versions, strict=True):
        send_missing(uploads, state, one)
    barrier = threading.Barrier(2)

    def finish(upload_id: str) -> str:
        barrier.wait()
        try:
            uploads.finish(upload_id, OWNER)
        except ConflictError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        outcomes = [*pool.map(finish, [state.id for state in states])]
    winner = outcomes.index("")
    assert outcomes[1 - winner]
    assert version_bytes(store, "digits", 1) == versions[winner]
    with pytest.raises(ConflictError, match="versions never change"):
        uploads.begin(declared(versions[1 - winner]), OWNER)


def test_the_same_version_by_two_callers_is_there_once(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes]
) -> None:
    for owner in (OWNER, "key:other"):
        uploads.begin(declared(files), owner)
    for owner in (OWNER, "key:other"):
        state = uploads.state(declared(files).upload_id(owner), owner)
        send_missing(uploads, state, files, owner)
        uploads.finish(state.id, owner)
    assert version_bytes(store, "digits", 1) == files


def test_a_deleted_version_does_not_come_back(
    store: ModelStore, uploads: Uploads, files: dict[str, bytes]
) -> None:
    state = uploads.begin(declared(files), "key:late")
    send_missing(uploads, state, files, "key:late")
    push(uploads, files)
    delete_version(store, "digits", 1, why="leaked")
    with pytest.raises(VersionDeletedError, match="leaked"):
        uploads.begin(declared(files), OWNER)
    with pytest.raises(VersionDeletedError, match="under a new one"):
        uploads.finish(state.id, "key:late")
    assert store.models() == []


def test_signatures_are_checked_as_the_store_trusts(
    store: ModelStore, tmp_path: Path, folder: Path
) -> None:
    source = ModelStore(str(tmp_path / "signed"))
    key_in(tmp_path / "ada", "ada")
    key_in(tmp_path / "eve", "eve")
    source.publish(draft_in(folder), folder, sign=signer_in(tmp_path / "eve"))
    source.publish(draft_in(folder), folder)
    source.publish(draft_in(folder), folder, sign=signer_in(tmp_path / "ada"))
    trust = Trust(keys_folder=str(tmp_path / "ada" / "trusted"), signature_needed_for="everything")
    uploads = Uploads(store, tmp_path / "uploads", trust.check_arrival)
    for version, error in ((1, ForeignKeyError), (2, SignatureMissingError)):
        files = version_bytes(source, "digits", version)
        with pytest.raises(error):
            push(uploads, files, version)
        assert nothing_visible(store)
    push(uploads, version_bytes(source, "digits", 3), 3)
    assert store.versions("digits") == [3]


def test_a_pipeline_without_its_parts_is_refused(
    store: ModelStore, uploads: Uploads, tmp_path: Path
) -> None:
    source = ModelStore(str(tmp_path / "parts"))
    publish_parts(source.url)
    manifest = publish_graph(source.url)
    files = version_bytes(source, manifest.model, 1)
    state = uploads.begin(declared(files, manifest.model), OWNER)
    send_missing(uploads, state, files)
    with pytest.raises(PipelinePartError, match="publish that first"):
        uploads.finish(state.id, OWNER)
    assert store.models() == []
    publish_parts(store.url)
    uploads.finish(state.id, OWNER)
    assert store.manifest(manifest.model, 1) == manifest


def test_abandoned_uploads_are_collected_by_age(
    store: ModelStore, files: dict[str, bytes], tmp_path: Path
) -> None:
    place = tmp_path / "uploads"
    uploads = uploads_into(store, place)
    old = uploads.begin(declared(files), "key:old")
    new = uploads.begin(declared(files), "key:new")
    an_hour_ago = os.stat(place / old.id / "lock").st_mtime - 3601
    os.utime(place / old.id / "lock", (an_hour_ago, an_hour_ago))
    assert uploads.collect() == 1
    assert opened(place) == [new.id]
    cut_off = place / ("0" * 32)
    cut_off.mkdir()  # its removal ended behind that of its lock
    os.utime(cut_off, (an_hour_ago, an_hour_ago))
    assert uploads.collect() == 1
    assert opened(place) == [new.id]
    uploads.abandon(new.id, "key:new")
    assert opened(place) == []


def test_an_upload_that_is_being_finished_takes_nothing(
    store: ModelStore, files: dict[str, bytes], tmp_path: Path
) -> None:
    """The call that comes while the signature is checked is told so, and the upload is whole."""
    heard: list[type[StoreError]] = []

    def interrupted(_: ModelStore, manifest: Manifest) -> None:
        for call in (
            lambda: uploads.append(state.id, OWNER, "model.onnx", 5, b""),
            lambda: uploads.abandon(state.id, OWNER),
            lambda: uploads.begin(declared(files), OWNER),
        ):
            with pytest.raises(UploadBusyError) as caught:
                call()
            heard.append(caught.type)

    uploads = Uploads(store, tmp_path / "uploads", interrupted)
    state = uploads.begin(declared(files), OWNER)
    send_missing(uploads, state, files)
    uploads.finish(state.id, OWNER)
    assert len(heard) == 3
    assert version_bytes(store, "digits", 1) == files


FULL = """
import resource, sys
from pathlib import Path
from model_store.errors import StorageFullError
from model_store.store import ModelStore
from model_store.uploads.declaration import Declaration
from model_store.uploads.uploads import Uploads

uploads = Uploads(ModelStore(sys.argv[1]), Path(sys.argv[2]), lambda *_: None)
file = {"file": "weights.bin", "size_bytes": 3_000_000, "sha256": "0" * 64}
manifest = {"file": "manifest.json", "size_bytes": 2, "sha256": "1" * 64}
state = uploads.begin(
    Declaration.model_validate({"model": "big", "version": 1, "files": [file, manifest]}), ""
)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
print(uploads.append(state.id, "", "weights.bin", 0, bytes(1_500_000)))
try:
    uploads.append(state.id, "", "weights.bin", 1_500_000, bytes(1_500_000))
except StorageFullError as error:
    print(error)
print(uploads.state(state.id, "").received["weights.bin"])
"""


def test_a_full_disk_is_told_and_keeps_what_was_there(store: ModelStore, tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of a disk: both refuse a write."""
    place = tmp_path / "uploads"
    done = subprocess.run(
        [sys.executable, "-c", FULL, store.url, str(place)],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    before, said, after = done.stdout.splitlines()
    assert before == after == "1500000"
    assert "File too large; make room there, and push again" in said
    assert store.models() == []


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_bytes_arrive_whole_in_any_order_of_calls(
    tmp_path_factory: pytest.TempPathFactory, source: ModelStore, data: st.DataObject
) -> None:
    """Law: after any calls, right and wrong, each file is a prefix of what is sent."""
    store = ModelStore(str(tmp_path_factory.mktemp("target")))
    uploads = uploads_into(store, Path(store.url, ".uploads"))
    files = version_bytes(source, "digits", 1)
    state = uploads.begin(declared(files), OWNER)
    lengths = dict.fromkeys(files, 0)
    for _ in range(data.draw(st.integers(0, 30))):
        name = data.draw(st.sampled_from(sorted(files)))
        offset = data.draw(st.one_of(st.just(lengths[name]), st.integers(0, len(files[name]))))
        count = data.draw(st.integers(0, 400))
        part = files[name][offset : offset + count]
        if offset == lengths[name]:
            lengths[name] = uploads.append(state.id, OWNER, name, offset, part)
        else:
            with pytest.raises(UploadOffsetError):
                uploads.append(state.id, OWNER, name, offset, part)
    again = uploads.begin(declared(files), OWNER)
    assert again.received == lengths
    send_missing(uploads, again, files)
    uploads.finish(state.id, OWNER)
    assert version_bytes(store, "digits", 1) == files
