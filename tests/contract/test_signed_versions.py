"""Signed versions, in a folder and in a bucket: signers, and refusals."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_store.errors import (
    ForeignKeyError,
    KeyFileError,
    SignatureMismatchError,
    SignatureMissingError,
    StorageError,
)
from model_store.manifest import Manifest
from model_store.signatures.key_folder import KeyFolder, TrustedKey
from model_store.signatures.signing import Digests, signer_with
from model_store.storage.storage import Storage
from model_store.store import ModelStore, Sign
from model_store.transfer import copy_version
from tests.contract.test_store import assert_nothing_published, fail_at_write, flip_a_bit
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import artifact_in, draft_in

VERSION_FILES = ["golden.safetensors", "manifest.json", "model.onnx", "report.json"]


@pytest.fixture
def ada(tmp_path: Path) -> TrustedKey:
    return key_in(tmp_path / "ada", "ada")


@pytest.fixture
def sign(ada: TrustedKey, tmp_path: Path) -> Sign:
    return signer_in(tmp_path / "ada")


@pytest.fixture
def signed(store: ModelStore, folder: Path, sign: Sign) -> Manifest:
    """Publishes version 1 of digits, signed by Ada."""
    return store.publish(draft_in(folder), folder, sign=sign)


def change_manifest(store: ModelStore, manifest: Manifest, folder: Path) -> Manifest:
    """Replaces the artifact's bytes and adapts the manifest: only a signature reveals it."""
    other = artifact_in(folder, b"evil bytes")
    changed = manifest.model_copy(update={"artifacts": (other,)})
    store.storage.replace("digits/1/model.onnx", b"evil bytes")
    store.storage.replace("digits/1/manifest.json", changed.to_json())
    return changed


def test_the_signer_of_a_version_is_known(
    store: ModelStore, signed: Manifest, ada: TrustedKey, tmp_path: Path
) -> None:
    grace = key_in(tmp_path / "grace", "grace")
    assert store.signer(signed, [grace, ada]) == ada
    assert ModelStore(store.url).manifest("digits", 1) == signed


def test_the_signature_covers_every_file_and_is_there_before_the_version(
    store: ModelStore, folder: Path, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Storage.create
    before_manifest: list[str] = []

    def look_first(self: Storage, path: str, data: bytes) -> None:
        if path.endswith("manifest.json"):
            before_manifest.extend(self.list("digits/1/"))
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", look_first)
    covered: list[str] = []

    def look_and_sign(digests: Digests) -> bytes:
        covered.extend(digests)
        return sign(digests)

    store.publish(draft_in(folder), folder, sign=look_and_sign)
    assert sorted(covered) == VERSION_FILES
    assert "digits/1/model.sig" in before_manifest


def test_a_version_without_a_signature_is_told_from_all_others(
    store: ModelStore, folder: Path, signed: Manifest, ada: TrustedKey
) -> None:
    unsigned = store.publish(draft_in(folder), folder)
    assert store.signature("digits", 2) is None
    with pytest.raises(SignatureMissingError, match=r"version 2 of 'digits' in .* is not signed"):
        store.signer(unsigned, [ada])
    store.storage.delete("digits/1/model.sig")
    with pytest.raises(SignatureMissingError, match=r"its model\.sig was removed since"):
        store.signer(signed, [ada])


def test_a_foreign_key_is_named_beside_those_that_are_trusted(
    store: ModelStore, signed: Manifest, ada: TrustedKey, tmp_path: Path
) -> None:
    grace = key_in(tmp_path / "grace", "grace")
    with pytest.raises(ForeignKeyError) as refused:
        store.signer(signed, [grace])
    assert f"is signed by the key {ada.fingerprint}, which is not trusted" in str(refused.value)
    assert f"(trusted: grace {grace.fingerprint[:16]}…)" in str(refused.value)
    with pytest.raises(ForeignKeyError, match="trusted: none"):
        store.signer(signed, [])


def test_whoever_signs_anew_without_the_key_is_foreign(
    store: ModelStore, signed: Manifest, ada: TrustedKey, tmp_path: Path
) -> None:
    key_in(tmp_path / "eve", "eve")
    changed = change_manifest(store, signed, tmp_path)
    sealed = store.storage.get("digits/1/manifest.json", 2**20)
    bundle = json.loads(signer_in(tmp_path / "eve")(changed.digests(sealed)))
    store.storage.replace("digits/1/model.sig", json.dumps(bundle).encode())
    with pytest.raises(ForeignKeyError):
        store.signer(changed, [ada])
    bundle["verificationMaterial"]["publicKey"]["hint"] = ada.fingerprint
    store.storage.replace("digits/1/model.sig", json.dumps(bundle).encode())
    with pytest.raises(SignatureMismatchError, match="the signature is not by the key it names"):
        store.signer(changed, [ada])


def test_a_changed_manifest_and_what_it_says_of_files_are_named(
    store: ModelStore, signed: Manifest, ada: TrustedKey, tmp_path: Path
) -> None:
    changed = change_manifest(store, signed, tmp_path)
    assert store.read_file(changed, changed.artifacts[0].file) == b"evil bytes"  # consistent, but:
    old, new = (m.artifacts[0].file.sha256[:16] for m in (signed, changed))
    with pytest.raises(SignatureMismatchError) as refused:
        store.signer(changed, [ada])
    assert "version 1 of 'digits'" in str(refused.value)
    assert "is not what the key 'ada' signed: manifest.json has sha256" in str(refused.value)
    assert f"model.onnx has sha256 {new}…, signed was {old}…" in str(refused.value)
    assert "golden.safetensors" not in str(refused.value)


def test_a_manifest_that_changes_after_it_was_read_is_noticed(
    store: ModelStore, signed: Manifest, ada: TrustedKey, tmp_path: Path
) -> None:
    changed = change_manifest(store, signed, tmp_path)
    store.storage.replace("digits/1/manifest.json", signed.to_json())
    with pytest.raises(SignatureMismatchError, match="was changed after it had been read"):
        store.signer(changed, [ada])


def test_no_bit_of_the_signed_statement_may_change(
    store: ModelStore, signed: Manifest, ada: TrustedKey
) -> None:
    right = store.storage.get("digits/1/model.sig", 2**20)
    flip_a_bit(store, "digits/1/model.sig")  # its middle lies within the statement
    with pytest.raises(SignatureMismatchError):
        store.signer(signed, [ada])
    for broken in (b"", right[:-1], b"{}", b"[" * 100_000, b"null", right + b"x"):
        store.storage.replace("digits/1/model.sig", broken)
        with pytest.raises(SignatureMismatchError, match="is not a signature made with a key"):
            store.signer(signed, [ada])


def test_the_signature_of_another_version_is_no_signature(
    store: ModelStore, folder: Path, signed: Manifest, sign: Sign, ada: TrustedKey
) -> None:
    second = store.publish(draft_in(folder), folder, sign=sign)
    store.storage.replace("digits/2/model.sig", store.storage.get("digits/1/model.sig", 2**20))
    with pytest.raises(SignatureMismatchError, match=r"manifest\.json has sha256"):
        store.signer(second, [ada])
    assert store.signer(signed, [ada]) == ada


def test_a_key_that_cannot_sign_leaves_nothing(
    store: ModelStore, folder: Path, ada: TrustedKey, tmp_path: Path
) -> None:
    with pytest.raises(KeyFileError, match="cannot sign with"):
        signer_with(ada.file)

    def unable(_: object) -> bytes:
        raise KeyFileError("the token was pulled out")

    with pytest.raises(KeyFileError):
        store.publish(draft_in(folder), folder, sign=unable)
    assert_nothing_published(store, folder)


def test_a_store_that_fails_at_the_signature_leaves_nothing(
    store: ModelStore, folder: Path, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        fail_at_write(full, 3)  # after the three files of the version
        with pytest.raises(StorageError, match="no space left"):
            store.publish(draft_in(folder), folder, sign=sign)
    assert_nothing_published(store, folder)


def test_a_signature_that_was_stored_though_its_write_failed_is_taken_away(
    store: ModelStore, folder: Path, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Storage.replace

    def lose_the_answer(self: Storage, path: str, data: bytes) -> None:
        replace(self, path, data)
        if path.endswith("model.sig"):
            raise StorageError("the connection broke")

    with monkeypatch.context() as losing:
        losing.setattr(Storage, "replace", lose_the_answer)
        with pytest.raises(StorageError, match="the connection broke"):
            store.publish(draft_in(folder), folder, sign=sign)
    assert_nothing_published(store, folder)


@pytest.fixture
def target(store: ModelStore, s3_url: str, tmp_path: Path) -> ModelStore:
    """Returns an empty store of the other kind."""
    return ModelStore(s3_url if store.is_local else str(tmp_path / "target"))


def test_a_copy_is_signed_as_the_original_is(
    store: ModelStore, signed: Manifest, target: ModelStore, ada: TrustedKey
) -> None:
    copy_version(store, target, "digits", 1)
    assert target.signature("digits", 1) == store.signature("digits", 1) is not None
    assert target.signer(signed, [ada]) == ada


def test_a_copy_that_lost_its_signature_gets_it_back(
    store: ModelStore, signed: Manifest, target: ModelStore, ada: TrustedKey
) -> None:
    copy_version(store, target, "digits", 1)
    target.storage.delete("digits/1/model.sig")
    assert copy_version(store, target, "digits", 1).files_copied == 0
    assert target.signer(signed, [ada]) == ada


def test_a_copy_is_signed_before_it_exists(
    store: ModelStore, signed: Manifest, target: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "create", refuse_manifests(Storage.create))
    with pytest.raises(StorageError, match="no space left"):
        copy_version(store, target, signed.model, 1)
    assert target.models() == []
    assert target.signature("digits", 1) is not None


def refuse_manifests(create: object) -> object:
    def fail(self: Storage, path: str, data: bytes) -> None:
        if path.endswith("manifest.json"):
            raise StorageError("no space left")
        create(self, path, data)  # type: ignore[operator]

    return fail


def their_command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Runs the command of OpenSSF Model Signing."""
    command = [sys.executable, "-m", "model_signing", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def verified_by_them(version: Path, key: TrustedKey) -> "subprocess.CompletedProcess[str]":
    signature = version / "model.sig"
    options: Sequence[object] = ("--signature", signature, "--public_key", key.file)
    return their_command("verify", "key", version, *options)


@pytest.fixture
def pulled(store: ModelStore, signed: Manifest, tmp_path: Path) -> Path:
    """Returns the version's folder after a pull, which includes a claim."""
    copy_version(store, ModelStore(str(tmp_path / "pulled")), "digits", signed.version)
    return tmp_path / "pulled/digits/1"


def test_their_command_agrees_with_ours(pulled: Path, ada: TrustedKey, tmp_path: Path) -> None:
    assert (pulled / "claim.json").exists()
    done = verified_by_them(pulled, ada)
    assert done.returncode == 0, done.stderr
    assert "Verification succeeded" in done.stdout + done.stderr
    other = verified_by_them(pulled, key_in(tmp_path / "grace", "grace"))
    assert other.returncode != 0
    assert "Key mismatch" in other.stdout + other.stderr


@pytest.mark.parametrize("file", ["manifest.json", "model.onnx"])
def test_their_command_finds_one_flipped_bit(pulled: Path, ada: TrustedKey, file: str) -> None:
    data = bytearray((pulled / file).read_bytes())
    data[0] ^= 1
    (pulled / file).write_bytes(data)
    done = verified_by_them(pulled, ada)
    assert done.returncode != 0
    assert re.search(rf"Hash mismatch for \W*{file}", done.stdout + done.stderr)


def test_their_command_finds_a_file_that_was_added(pulled: Path, ada: TrustedKey) -> None:
    (pulled / "extra.pt").write_bytes(b"")
    done = verified_by_them(pulled, ada)
    assert done.returncode != 0
    assert "extra.pt" in done.stdout + done.stderr


def test_a_version_signed_by_their_command_is_signed_for_us(
    folder: Path, ada: TrustedKey, tmp_path: Path
) -> None:
    store = ModelStore(str(tmp_path / "local"))
    manifest = store.publish(draft_in(folder), folder)
    version = Path(store.url, "digits/1")
    done = their_command(
        "sign", "key", version,
        "--signature", version / "model.sig",
        "--private_key", KeyFolder(tmp_path / "ada").signing_key(),
        "--ignore-paths", version / "claim.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert store.signer(manifest, [ada]) == ada
