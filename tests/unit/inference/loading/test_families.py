"""Versions with several artifact kinds, from store to backend: loading, fallback, and reasons."""

import sys
from pathlib import Path

import pytest

from model_store.host.install_advice import install_command
from model_store.manifest import Artifact
from model_store.store import ModelStore
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from tests.fixtures import exported_models
from tests.fixtures.exported_models import artifact_of, publish


def openvino(folder: Path) -> Artifact:
    data, weights = exported_models.openvino_ir()
    return artifact_of(folder, "openvino", data, weights, latency_ms={1: 0.1})


def pt2(folder: Path) -> Artifact:
    return artifact_of(folder, "pt2", exported_models.pt2(), latency_ms={1: 0.2})


def loaded(url: Path, **options: object) -> str:
    store = ModelStore(str(url))
    made = LoadOptions(**options)  # type: ignore[arg-type]
    version = load_version(store, store.manifest("m", 1), made)
    for backend in version.backends:
        backend.close()
    return version.backends[0].platform


@pytest.mark.parametrize("isolate", [False, True])
def test_both_files_of_openvino_are_loaded(tmp_path: Path, isolate: bool) -> None:
    publish(str(tmp_path), "m", pt2, openvino)
    assert loaded(tmp_path, isolate=isolate) == "openvino_ir"


def test_weights_that_were_altered_never_reach_the_runtime(tmp_path: Path) -> None:
    publish(str(tmp_path), "m", pt2, openvino)
    weights = tmp_path / "m" / "1" / "openvino.bin"
    weights.write_bytes(bytes(len(weights.read_bytes())))
    assert loaded(tmp_path) == "pytorch_pt2"
    with pytest.raises(LoadError, match=r"openvino\.bin: sha256 differs"):
        loaded(tmp_path, artifact="openvino")


def test_a_server_without_openvino_says_what_to_install_and_serves_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(str(tmp_path), "m", pt2, openvino)
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert loaded(tmp_path) == "pytorch_pt2"
    (warning,) = (line for line in caplog.records if line.name == "flambeau.loader")
    assert install_command("openvino") in warning.__dict__["reason"]


def test_a_program_is_code_and_loads_from_local_stores_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(tmp_path), "m", pt2)
    monkeypatch.setattr(ModelStore, "is_local", False)
    with pytest.raises(
        LoadError, match=r"pt2 is code and loads here only when its version is signed"
    ):
        loaded(tmp_path)
