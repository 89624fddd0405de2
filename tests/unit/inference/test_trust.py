"""A server's trusted signers, and the content that needs a signature."""

from pathlib import Path

import pytest

from model_store.artifact_kinds import STORED_KINDS
from model_store.errors import (
    ForeignKeyError,
    KeyFileError,
    SignatureMissingError,
    StoreError,
    UnsafeOnnxError,
)
from model_store.manifest import FileEntry, Manifest, PythonModel
from model_store.signatures.key_folder import TrustedKey
from model_store.store import ModelStore
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.config import InferenceSettings
from services.inference.loading.configured_policy import serving_policy
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from services.inference.trust import SignatureScope, Trust
from services.settings import checked
from tests.fixtures import misbehaving_models, onnx_models
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import artifact_in, draft_in


@pytest.fixture
def ada(tmp_path: Path) -> TrustedKey:
    return key_in(tmp_path / "ada", "ada")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


def scripted(store: ModelStore, folder: Path, keys: Path | None = None) -> Manifest:
    """Publishes a version with a code artifact, signed if there are keys."""
    code = artifact_in(folder, name="torchscript", kind="torchscript")
    draft = draft_in(folder, artifacts=(code, artifact_in(folder)))
    return store.publish(draft, folder, sign=signer_in(keys) if keys else None)


def trusting(keys: Path, needed_for: SignatureScope = "code") -> Trust:
    return Trust(keys_folder=str(keys / "trusted"), signature_needed_for=needed_for)


@pytest.mark.parametrize(
    ("needed_for", "code_here", "code_elsewhere", "data"),
    [
        ("remote_code", False, True, False),
        ("code", True, True, False),
        ("everything", True, True, True),
    ],
)
def test_what_must_be_signed(
    tmp_path: Path,
    needed_for: SignatureScope,
    code_here: bool,
    code_elsewhere: bool,
    data: bool,
) -> None:
    trust = Trust(signature_needed_for=needed_for)
    for kind, stored in STORED_KINDS.items():
        python = PythonModel(name="Model") if stored.has_class else None
        artifact = artifact_in(tmp_path, kind=kind, python=python)
        is_code = stored.is_code
        for is_local, needed in ((True, code_here), (False, code_elsewhere)):
            assert trust.needs_signature(artifact, is_local) == (needed if is_code else data)


def test_unsigned_code_is_refused_and_data_is_not(
    store: ModelStore, ada: TrustedKey, tmp_path: Path
) -> None:
    manifest = scripted(store, tmp_path / "draft")
    code, data = manifest.artifacts
    trust = trusting(tmp_path / "ada")
    trust.check(store, manifest, data)
    with pytest.raises(SignatureMissingError) as refused:
        trust.check(store, manifest, code)
    assert str(refused.value).startswith("torchscript is code and loads here only when its version")
    assert "signature_needed_for=code" in str(refused.value)
    with pytest.raises(SignatureMissingError, match="onnx is data and loads here only when"):
        trusting(tmp_path / "ada", "everything").check(store, manifest, data)


def test_trust_follows_the_folder_without_a_restart(
    store: ModelStore, ada: TrustedKey, tmp_path: Path
) -> None:
    manifest = scripted(store, tmp_path / "draft", tmp_path / "ada")
    trust = trusting(tmp_path / "ada")
    trust.check(store, manifest, manifest.artifacts[0])
    ada.file.unlink()
    with pytest.raises(ForeignKeyError, match="trusted: none"):
        trust.check(store, manifest, manifest.artifacts[0])


def test_the_users_own_folder_is_the_default(
    store: ModelStore, ada: TrustedKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = scripted(store, tmp_path / "draft", tmp_path / "ada")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/flambeau").mkdir(parents=True)
    with pytest.raises(ForeignKeyError):
        Trust(signature_needed_for="code").check(store, manifest, manifest.artifacts[0])
    (tmp_path / "ada").rename(tmp_path / "config/flambeau/keys")
    Trust(signature_needed_for="code").check(store, manifest, manifest.artifacts[0])


def test_a_folder_of_keys_that_is_not_there_is_named(
    store: ModelStore, ada: TrustedKey, tmp_path: Path
) -> None:
    manifest = scripted(store, tmp_path / "draft", tmp_path / "ada")
    with pytest.raises(
        KeyFileError, match=r"trusted_keys is .*nowhere/trusted, which is not a folder"
    ):
        trusting(tmp_path / "nowhere").check(store, manifest, manifest.artifacts[0])


def test_every_policy_gets_the_settings() -> None:
    settings = {
        "trusted_keys": "/keys",
        "signature_needed_for": "everything",
        "model_settings": {"m": {}},
    }
    policy = serving_policy(checked(InferenceSettings, settings))
    expected = Trust(keys_folder="/keys", signature_needed_for="everything")
    assert policy.lane.load.trust == policy.by_model["m"].load.trust == expected


def test_nothing_of_a_refused_artifact_is_read(
    tmp_path: Path, ada: TrustedKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = misbehaving_models.publish(
        str(tmp_path / "store"), "m", misbehaving_models.well_behaved()
    )
    store = ModelStore(str(tmp_path / "store"))
    read: list[str] = []
    read_file = ModelStore.read_file

    def listen(self: ModelStore, of: Manifest, entry: FileEntry, limit: int | None = None) -> bytes:
        read.append(entry.file)
        return read_file(self, of, entry, limit)

    monkeypatch.setattr(ModelStore, "read_file", listen)
    with pytest.raises(LoadError, match=r"artifact torchscript: .* is not signed"):
        load_version(store, manifest, LoadOptions(trust=trusting(tmp_path / "ada")))
    assert read == ["golden.safetensors"]


def test_an_onnx_file_is_checked_before_a_runtime_opens_it(tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path, b"\x08\x07\x12\x04ORTM")
    with pytest.raises(UnsafeOnnxError, match=r"model\.onnx is in ONNX Runtime's own format"):
        open_backend(
            VerifiedArtifact(
                entry=artifact, signature=misbehaving_models.SIGNATURE, data=b"\x08\x07\x12\x04ORTM"
            ),
            OpenOptions(),
        )
    assert issubclass(UnsafeOnnxError, StoreError)
    data = onnx_models.linear()
    open_backend(
        VerifiedArtifact(entry=artifact, signature=misbehaving_models.SIGNATURE, data=data),
        OpenOptions(),
    ).close()
