"""Certificates of this machine: what passes, what fails, what cannot run here, and why."""

from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.row_form import Run
from model_store.arrays.parity import Comparison, Parity
from model_store.certificates.certificate import Certificate
from model_store.errors import GoldenMismatchError
from model_store.manifest import Artifact
from model_store.store import ModelStore
from services.inference.backends.artifact_fit import UnfitArtifactError
from services.inference.backends.device import Device
from services.inference.certifying import certification
from services.inference.certifying.certification import CertifyOptions, certify
from services.inference.loading import artifact_files
from services.inference.loading.loader import LoadOptions, load_version
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.store_versions import entry_in


def certified(url: Path, model: str = "m", **options: object) -> Certificate:
    store = ModelStore(str(url))
    return certify(store, store.manifest(model, 1), CertifyOptions(**options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Certificate of a version whose first artifact is wrong, and whose third was altered."""
    url = tmp_path_factory.mktemp("store")
    publish(str(url), "m", linear(5), linear(2), linear(2, layers=1), linear(2))
    file = url / "m" / "1" / "model.2.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    return certified(url)


def test_one_that_gives_the_golden_outputs_passes(mixed: Certificate) -> None:
    result = mixed.artifacts[1]
    assert (result.outcome, result.reason, result.repeats) == ("passed", "", True)
    assert [replay.where for replay in result.replays] == [
        f"golden rows in batches of {size}" for size in (1, 2, 7, 8, 32)
    ]
    assert result.worst() == (0.0, 1.0)
    assert {1, 8, 32} <= set(result.latency_ms)


def test_one_that_departs_fails_with_the_place(mixed: Certificate) -> None:
    result = mixed.artifacts[0]
    assert result.outcome == "failed"
    assert result.reason == (
        "golden rows in batches of 1: largest difference 18 is above 0.0001, most in row 1 of 'y'"
    )
    assert not mixed.holds


def test_one_that_was_altered_is_not_opened(mixed: Certificate) -> None:
    result = mixed.artifacts[2]
    assert (result.outcome, result.replays) == ("failed", ())
    assert "sha256 differs from the manifest" in result.reason
    assert mixed.artifacts[3].outcome == "passed", "the others go on"


def test_it_says_what_the_machine_is_and_not_which(mixed: Certificate) -> None:
    environment = mixed.environment
    assert environment.device == "cpu"
    assert environment.libraries["onnxruntime"]
    assert environment.digest() != environment.model_copy(update={"threads": 2}).digest()
    assert "onnxruntime" in environment.summary()


def test_one_that_cannot_run_here_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(tmp_path), "m", linear(2))

    def refuse(artifact: Artifact, device: Device) -> None:
        raise UnfitArtifactError("it lacks a processor")

    monkeypatch.setattr(artifact_files, "check_fit", refuse)
    certificate = certified(tmp_path)
    (result,) = certificate.artifacts
    assert (result.outcome, result.reason) == ("not run", "it lacks a processor")
    assert not certificate.holds, "nothing was proven"


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    publish(str(tmp_path), "m", linear(2, layers=1))
    (result,) = certified(tmp_path, time_limit_s=0.001).artifacts
    assert (result.outcome, result.reason) == (
        "failed",
        "does not run: it took longer than 0.001 s",
    )


def test_a_judge_adds_rows_and_metrics(tmp_path: Path) -> None:
    publish(str(tmp_path), "m", linear(2))

    class Strict:
        def judge(
            self, run: Run, artifact: Artifact
        ) -> tuple[list[Comparison], dict[str, float], str | None]:
            assert run({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[2, 2, 2, 2]]
            return (
                [Comparison("the test split", Parity(0.0, 1.0))],
                {"accuracy": 0.5},
                "accuracy fell",
            )

    store = ModelStore(str(tmp_path))
    certificate = certify(store, store.manifest("m", 1), CertifyOptions(), judge=Strict())
    (result,) = certificate.artifacts
    assert (result.outcome, result.reason) == ("failed", "accuracy fell")
    assert result.metrics == {"accuracy": 0.5}
    assert result.replays[-1].where == "the test split"


def test_golden_rows_of_another_signature_are_refused_at_load(tmp_path: Path) -> None:
    manifest = publish(str(tmp_path), "m", linear(2))
    other = publish(str(tmp_path), "other", linear(2), golden={"x": np.ones((4, 4), np.float32)})
    golden = tmp_path / "other" / "1" / "golden.safetensors"
    file = entry_in(tmp_path / "m" / "1", "golden.safetensors", golden.read_bytes())
    wrong = manifest.golden.model_copy(update={"file": file})
    changed = manifest.model_copy(update={"golden": wrong})
    assert other.golden.rows == 4
    with pytest.raises(GoldenMismatchError, match="has 4 rows; the manifest says 8"):
        load_version(ModelStore(str(tmp_path)), changed, LoadOptions())


def test_one_that_takes_too_much_memory_fails(tmp_path: Path) -> None:
    publish(str(tmp_path), "m", linear(2, layers=1))
    (result,) = certified(tmp_path, memory_limit_bytes=2**20).artifacts
    assert result.outcome == "failed"
    assert "it needed more than 0.0 GiB of memory" in result.reason


def test_one_gets_no_more_memory_than_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(tmp_path), "m", linear(2, layers=1))
    monkeypatch.setattr(certification, "device_memory_bytes", lambda _: (2**30, 2**30 + 2**20))
    (result,) = certified(tmp_path).artifacts
    assert result.outcome == "failed"
    assert "it needed more than 0.0 GiB of memory" in result.reason
