"""Every kind and precision: made, opened and equal to the checkpoint at any batch size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flambeau.protocol.tensors import Array
from model_store.host.cpu_features import cpu_features
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from tests.fixtures.exported_models import artifact_of
from tests.unit.training.recipes import export_here, recipe, splits, untrained
from training.errors import ExportError
from training.exporters import openvino_ir
from training.exporters.export import Exported
from training.loop.loop import Trained
from training.models.swish import SwishClassifier
from training.network.model import run_model
from training.recipe.recipe import Recipe
from training.verification.runners import file_runner
from training.verification.verify import checkpoint_report, reference, verify_apart

KINDS = {
    "torchscript": 1e-6,
    "onnx": 1e-6,
    "onnx-int8": 0.05,
    "pt2": 1e-6,
    "pt2-bf16": 0.05,
    "pt2-int8": 0.05,
    "openvino": 1e-5,
    "openvino-int8": 0.05,
}
"""Largest differences from the outputs of the checkpoint. AOTInductor compiles slowly, so only
`test_families_by_kind.py` tests it, with an LSTM."""


def entry(name: str) -> dict[str, str]:
    kind, _, precision = name.partition("-")
    return {"kind": kind, "precision": precision or "fp32"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return untrained(recipe(), splits(), tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def made(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    folder = tmp_path_factory.mktemp("version")
    wanted = recipe(export=[entry(name) for name in KINDS])
    found = export_here(wanted, trained, splits(), folder)
    return {one.entry.name: one for one in found}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gives_what_the_checkpoint_gives(
    name: str, made: dict[str, Exported], trained: Trained
) -> None:
    one = made[name]
    run = file_runner(one.entry.kind, one.entry.precision, one.path, trained.signature)
    for rows in (1, 2, 7, 64):
        image: Array = np.random.default_rng(rows).random((rows, 1, 8, 8), np.float32)
        (right,) = run_model(trained.model, [image]).values()
        found = run({"image": image})["logits"]
        assert found.dtype == np.float32
        assert np.abs(np.subtract(found, right)).max() <= KINDS[name]


@pytest.mark.long
def test_convolutions_of_8_bits_are_served_as_they_were_proven(
    made: dict[str, Exported], trained: Trained, tmp_path: Path
) -> None:
    """A server compiles them, as nobody does who exports."""
    data = made["pt2-int8"].path.read_bytes()
    artifact = artifact_of(tmp_path, "pt2", data, precision="int8")
    backend = open_backend(
        VerifiedArtifact(entry=artifact, signature=trained.signature, data=data), OpenOptions()
    )
    image: Array = np.random.default_rng(0).random((7, 1, 8, 8), np.float32)
    run = file_runner("pt2", "int8", made["pt2-int8"].path, trained.signature)
    right: Any = run({"image": image})["logits"]
    found: Any = backend.run({"image": image})["logits"]
    backend.close()
    np.testing.assert_allclose(found, right, atol=0.005)


def swish(twin: bool, *kinds: str) -> Recipe:
    target = "training.models.swish:SwishClassifier" if twin else f"{__name__}:WithoutTwin"
    model = {"target": target, "args": {"operator": True, "classes": 3}}
    return recipe(model=model, export=[entry(kind) for kind in kinds])


class WithoutTwin(SwishClassifier):
    """Calls an operator that no server has."""

    export_twin = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", ["torchscript", "onnx", "pt2", "openvino"])
def test_a_custom_operator_goes_out_by_its_twin_alone(kind: Any, tmp_path: Path) -> None:
    chosen = swish(True, kind)
    model = untrained(chosen, splits(), tmp_path)
    (made,) = export_here(chosen, model, splits(), tmp_path)
    image: Array = np.random.default_rng(0).random((5, 1, 8, 8), np.float32)
    right: Any = next(iter(run_model(model.model, [image]).values()))
    found: Any = file_runner(kind, "fp32", made.path, model.signature)({"image": image})["logits"]
    np.testing.assert_allclose(found, right, atol=1e-5)
    without, folder = swish(False, kind), tmp_path / "without"
    plain = untrained(without, splits(), folder)
    with pytest.raises(
        ExportError, match=r"calls flambeau::swish, .* method `export_twin\(self\)`"
    ):
        export_here(without, plain, splits(), folder)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_says_what_it_was_made_with(name: str, made: dict[str, Exported]) -> None:
    found = made[name].made_with
    assert found.libraries["torch"] == torch.__version__
    assert found.cpu_features == cpu_features()
    if name == "openvino-int8":
        assert {"nncf", "onnx", "openvino", "torch"} <= set(found.libraries)


def test_it_is_proven_in_a_process_of_its_own(made: dict[str, Exported], trained: Trained) -> None:
    expected, _ = reference(trained, splits().test)
    limits = recipe().export_limits
    found = verify_apart(made["openvino"], expected, limits)
    assert found.refusal is None
    assert found.weights_file == "model.bin"
    assert found.made_with == made["openvino"].made_with
    broken = made["pt2"].path.with_name("broken.pt2")
    broken.write_bytes(b"no archive")
    refused = verify_apart(Exported(made["pt2"].entry, broken, None), expected, limits)
    assert refused.refusal is not None
    assert refused.refusal.startswith("does not run: ")


@pytest.mark.parametrize("time_s", [600, 1e-9], ids=["there", "here, as its process is too late"])
def test_the_checkpoint_is_timed_in_a_process_of_its_own(time_s: float, trained: Trained) -> None:
    expected, metric = reference(trained, splits().test)
    here = trained.model.register_forward_pre_hook(lambda *_: timed_here.append(True))
    timed_here: list[bool] = []
    chosen = recipe(export_limits={"time_s": time_s})
    report = checkpoint_report(chosen, trained, expected, metric)
    here.remove()
    assert bool(timed_here) == (time_s < 1)
    assert report.latency_ms.keys() == {1, 8, 32}
    assert all(ms > 0 for ms in report.latency_ms.values())
    assert report.metric == metric


def test_without_a_compiler_aoti_says_what_to_install(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ExportError, match=r"AOTInductor needs a C\+\+ compiler; install g\+\+"):
        export_here(recipe(export=[entry("aoti")]), trained, splits(), tmp_path)


def test_what_is_no_bfloat16_is_not_called_so(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_ir, "cpu_features", lambda: ("avx2",))
    with pytest.raises(ExportError, match="OpenVINO would compute in FP32"):
        export_here(recipe(export=[entry("openvino-bf16")]), trained, splits(), tmp_path)
