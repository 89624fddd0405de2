"""Gates of a manifest, as every server and every certificate replays them."""

from pathlib import Path
from typing import Any

import pytest

from model_store.gates import Gate
from model_store.manifest import Manifest, parse_manifest
from model_store.store import ModelStore
from services.inference.certifying.certification import CertifyOptions, certify
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from tests.fixtures.onnx_models import linear, publish


def published(store_url: str, gate: dict[str, Any], file: bytes | None = None) -> Manifest:
    """Publishes y = 3x as a version of y = 2x, whose only limit is a gate."""
    manifest = publish(store_url, "m", file or linear(3), linear(2))
    artifact = manifest.artifacts[0]
    tolerance = artifact.verification.tolerance.model_copy(
        update={"max_abs_difference": 0.0, "gates": {"y": Gate.model_validate(gate)}}
    )
    proof = artifact.verification.model_copy(update={"tolerance": tolerance})
    one = artifact.model_copy(update={"verification": proof})
    return manifest.model_copy(update={"artifacts": (one,)})


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ({"top1": 1.0}, None),
        ({"cosine": 0.6}, None),
        ({"relative": 0.51}, None),
        ({"cosine": 0.7}, "cosine of 'y' 0.66667 is below 0.7"),
        ({"relative": 0.49}, "relative of 'y' 0.5 is above 0.49"),
        ({"exact": 1.0}, "exact of 'y' .* is below 1"),
        ({"edit_distance": 1.0}, "edit_distance cannot be measured for output 'y'"),
        ({"top1": 1.0, "axis": 9}, "top1 cannot be measured for output 'y'"),
    ],
)
def test_a_server_and_a_certificate_hold_an_artifact_to_its_gate(
    tmp_path: Path, gate: dict[str, Any], words: str | None
) -> None:
    store, manifest = ModelStore(str(tmp_path)), published(str(tmp_path), gate)
    certificate = certify(store, manifest, CertifyOptions())
    (result,) = certificate.artifacts
    assert certificate.holds is (words is None), result.reason
    if words is None:
        loaded = load_version(store, manifest, LoadOptions())
        for backend in loaded.backends:
            backend.close()
        assert set(result.worst_gates()["y"]) == {*gate, "absolute"}
    else:
        with pytest.raises(LoadError, match=words):
            load_version(store, manifest, LoadOptions())


def test_gates_survive_the_manifest_and_old_ones_keep_their_bytes(tmp_path: Path) -> None:
    manifest = published(str(tmp_path), {"top1": 0.5, "axis": 1})
    assert parse_manifest(manifest.to_json(), "here") == manifest
    plain = ModelStore(str(tmp_path)).manifest("m", 1)
    assert b"gates" not in plain.to_json()
