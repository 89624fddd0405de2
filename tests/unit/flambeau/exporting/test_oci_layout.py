"""Versions as OCI image layouts, read back as a registry's client reads them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flambeau.exporting.errors import ExportTargetError, NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.export_version import export_version
from model_store.errors import DigestMismatchError
from model_store.manifest import Manifest
from model_store.store import ModelStore
from tests.fixtures import onnx_models

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


@pytest.fixture
def manifest(store: ModelStore) -> Manifest:
    return onnx_models.publish(store.url, "digits", onnx_models.linear(2), recipe="a: 1\n")


def export(store: ModelStore, manifest: Manifest, path: Path, **options: Any) -> Exported:
    request = ExportRequest(store=store, manifest=manifest)
    return export_version(request, "oci-layout", path, **options)


def blob(folder: Path, described: dict[str, Any]) -> bytes:
    """Returns the bytes of a descriptor, once size and digest are checked."""
    algorithm, _, digest = described["digest"].partition(":")
    data: bytes = (folder / "blobs" / algorithm / digest).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    assert len(data) == described["size"]
    return data


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_every_file_is_a_layer_under_its_digest(
    store: ModelStore, manifest: Manifest, tmp_path: Path
) -> None:
    path = tmp_path / "digits.oci"
    exported = export(store, manifest, path)
    assert (exported.path, exported.artifact, exported.rows) == (path, "", None)
    assert json.loads((path / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((path / "index.json").read_text())
    (entry,) = index["manifests"]
    assert (index["schemaVersion"], entry["mediaType"]) == (2, MANIFEST)
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "1"}
    document = json.loads(blob(path, entry))
    assert (document["schemaVersion"], document["mediaType"]) == (2, MANIFEST)
    assert document["artifactType"] == entry["artifactType"] == "application/vnd.flambeau.model.v1"
    assert document["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert blob(path, document["config"]) == b"{}"
    annotations = document["annotations"]
    assert annotations["io.flambeau.model"] == "digits"
    assert annotations["io.flambeau.version"] == "1"
    assert annotations["io.flambeau.semver"] == "1.0.0"
    layers = {
        one["annotations"]["org.opencontainers.image.title"]: one for one in document["layers"]
    }
    assert blob(path, layers.pop("manifest.json")) == store.sealed(manifest)
    assert {name: blob(path, one) for name, one in layers.items()} == {
        entry.file: store.read_file(manifest, entry) for entry in manifest.all_files()
    }
    assert layers["report.json"]["mediaType"] == "application/json"
    assert layers["recipe.resolved.yaml"]["mediaType"] == "application/yaml"
    assert layers["model.0.onnx"]["mediaType"] == "application/octet-stream"


def test_the_same_version_gives_the_same_bytes(
    store: ModelStore, manifest: Manifest, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        export(store, manifest, tmp_path / name)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_signature_is_a_layer(store: ModelStore, manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "store" / "digits" / "1" / "model.sig").write_bytes(b"{}")
    export(store, manifest, tmp_path / "a")
    (entry,) = json.loads((tmp_path / "a" / "index.json").read_text())["manifests"]
    layers = json.loads(blob(tmp_path / "a", entry))["layers"]
    titles = [one["annotations"]["org.opencontainers.image.title"] for one in layers]
    assert titles[:2] == ["manifest.json", "model.sig"]


def test_only_a_layout_is_replaced_and_only_if_told(
    store: ModelStore, manifest: Manifest, tmp_path: Path
) -> None:
    path, other = tmp_path / "digits.oci", tmp_path / "other"
    export(store, manifest, path)
    (path / "more").write_text("x")
    with pytest.raises(ExportTargetError, match=r"digits\.oci exists; remove it, or add --force"):
        export(store, manifest, path)
    export(store, manifest, path, replace=True)
    assert not (path / "more").exists()
    other.mkdir()
    (other / "precious").write_text("x")
    for wrong in (other, tmp_path / "..", Path()):
        with pytest.raises(ExportTargetError):
            export(store, manifest, wrong, replace=True)
    assert (other / "precious").exists()
    assert sorted(os.listdir(tmp_path)) == ["digits.oci", "other", "store"]


def test_a_damaged_file_leaves_no_folder(
    store: ModelStore, manifest: Manifest, tmp_path: Path
) -> None:
    (tmp_path / "store" / "digits" / "1" / "model.0.onnx").write_bytes(b"other")
    with pytest.raises(DigestMismatchError):
        export(store, manifest, tmp_path / "a")
    assert os.listdir(tmp_path) == ["store"]


def test_an_artifact_cannot_be_chosen(
    store: ModelStore, manifest: Manifest, tmp_path: Path
) -> None:
    request = ExportRequest(store=store, manifest=manifest, artifact="onnx")
    with pytest.raises(NotExportableError, match="leave out --artifact"):
        export_version(request, "oci-layout", tmp_path / "a")
