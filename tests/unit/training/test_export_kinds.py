"""Every kind and precision: made, opened and equal to the checkpoint at any batch size."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_model

from model_store.cpu_features import BF16_FEATURES, cpu_features
from model_store.tensors import Array
from tests.unit.training.recipes import recipe, splits
from training.export import Exported, export_all
from training.loop import Trained
from training.model import build_model, run_model, try_model
from training.runners import file_runner
from training.train_state import TrainState
from training.verify import reference, verify_apart

KINDS = {
    "torchscript": 1e-6,
    "onnx": 1e-6,
    "onnx-int8": 0.05,
    "pt2": 1e-6,
    "pt2-bf16": 0.05,
    "pt2-int8": 0.05,
    "aoti": 1e-5,
    "openvino": 1e-5,
    "openvino-int8": 0.05,
}
"""How far the outputs may lie from the checkpoint's."""


def entry(name: str) -> dict[str, str]:
    kind, _, precision = name.partition("-")
    return {"kind": kind, "precision": precision or "fp32"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.manual_seed(0)
    model = build_model(recipe()).eval()
    weights = tmp_path_factory.mktemp("trained") / "weights.safetensors"
    save_model(model, str(weights))
    signature = try_model(model, splits(), recipe())
    return Trained(model=model, weights=weights, signature=signature, state=TrainState())


def exported(trained: Trained, folder: Path, *names: str) -> list[Exported]:
    wanted = recipe(export=[entry(name) for name in names])
    return export_all(wanted, trained, splits(), folder, Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def made(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    folder = tmp_path_factory.mktemp("version")
    return {one.entry.name: one for one in exported(trained, folder, *KINDS)}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gives_what_the_checkpoint_gives(
    name: str, made: dict[str, Exported], trained: Trained
) -> None:
    one = made[name]
    if name == "aoti" and shutil.which("g++") is None:
        assert one.failure is not None
        assert "AOTInductor needs a C++ compiler" in one.failure
        pytest.skip("no g++ here; its refusal was checked")
    assert one.failure is None
    run = file_runner(one.entry.kind, one.entry.precision, one.path, trained.signature)
    for rows in (1, 2, 7, 64):
        image: Array = np.random.default_rng(rows).random((rows, 1, 8, 8), np.float32)
        (right,) = run_model(trained.model, [image])
        found = run({"image": image})["logits"]
        assert found.dtype == np.float32
        assert np.abs(np.subtract(found, right)).max() <= KINDS[name]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_says_what_it_was_made_with(name: str, made: dict[str, Exported]) -> None:
    found = made[name].made_with
    assert found.libraries["torch"] == torch.__version__
    assert found.cpu_features == cpu_features()
    if name == "openvino-int8":
        assert set(found.libraries) == {"nncf", "openvino", "torch"}


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


def test_what_is_no_bfloat16_is_not_called_so(trained: Trained, tmp_path: Path) -> None:
    (found,) = exported(trained, tmp_path, "openvino-bf16")
    if BF16_FEATURES.intersection(cpu_features()):
        assert found.failure is None
    else:
        assert found.failure is not None
        assert "OpenVINO would compute in FP32" in found.failure
