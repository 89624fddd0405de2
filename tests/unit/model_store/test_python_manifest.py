"""Python models in a manifest: their files are files of the version, and hostile entries fail."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from model_store.manifest import Artifact, parse_manifest
from model_store.store import ModelStore
from tests.fixtures.python_models import DOUBLING, publish, python_artifact
from tests.fixtures.store_versions import artifact_in

ENTRY = {"file": "a.txt", "sha256": "0" * 64, "size_bytes": 1}


def python_of(**changes: Any) -> dict[str, Any]:
    """Returns the manifest's part of a Python model."""
    return {"name": "Model", "args": {}, "files": [ENTRY], "process": "own", **changes}


def test_side_files_are_files_of_the_version(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    manifest = publish(store.url, "m", DOUBLING, files={"words.txt": b"red"}, args={"a": [1]})
    manifest = store.manifest("m", manifest.version)
    (artifact,) = manifest.artifacts
    assert artifact.is_code
    assert [entry.file for entry in artifact.all_files()] == ["model.py", "words.txt"]
    assert "words.txt" in manifest.digests(b"")
    assert store.read_file(manifest, artifact.all_files()[1]) == b"red"
    assert parse_manifest(manifest.to_json(), "it") == manifest


def test_other_artifacts_serialize_as_before(tmp_path: Path) -> None:
    assert "python" not in artifact_in(tmp_path).model_dump(mode="json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "os.system"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "M" * 129}, "name"),
        ({"files": [{**ENTRY, "file": "../../etc/passwd"}]}, "file name"),
        ({"files": [{**ENTRY, "file": "/etc/passwd"}]}, "file name"),
        ({"files": [{**ENTRY, "file": "manifest.json"}]}, "the store writes this file itself"),
        ({"files": [{**ENTRY, "file": f"{n}.txt"} for n in range(257)]}, "256"),
        ({"files": [{**ENTRY, "file": "more.py"}], "process": "shared"}, "is a module"),
        ({"process": "every"}, "process"),
        ({"command": "id"}, "command"),
    ],
)
def test_a_hostile_entry_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    entry = python_artifact(tmp_path, DOUBLING).model_dump(mode="json")
    with pytest.raises(ValidationError, match=words):
        Artifact.model_validate({**entry, "python": python_of(**changes)})


def test_a_class_belongs_to_kind_python_alone(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="kind onnx must not have 'python'"):
        artifact_in(tmp_path, python=python_of())
    with pytest.raises(ValidationError, match="kind python lacks 'python', which names a class"):
        artifact_in(tmp_path, kind="python")


def test_two_files_of_one_name_are_no_version(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    with pytest.raises(ValidationError, match="a file name occurs twice"):
        publish(store.url, "m", DOUBLING, files={"report.json": b"{}"})
