"""Candidates: suitable for a model and a machine, best prospects first, the rest with a reason."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from flambeau.protocol.signature import Padding
from model_store.host.install_advice import install_command
from tests.fixtures.signatures import one_to_one
from tests.unit.training.small_networks import Perceptron, Recurrent
from training.auto.candidates import Candidate, Machine, ModelContents, candidates
from training.auto.model_contents import model_contents
from training.networks import SmallCnn
from training.recipe.kinds.onnx_kind import OnnxInt8Export
from training.recipe.parts.auto_export import AutoExport

ALL = frozenset({"nncf", "openvino", "torchao"})
ZEN_4 = Machine(
    cpu_features=frozenset({"avx2", "avx512_vnni", "avx512_bf16"}),
    packages=ALL,
    compiler=True,
    without_fp16="no GPU",
)
AVX2 = replace(ZEN_4, cpu_features=frozenset({"avx2"}))
MLP = ModelContents(linear=True)
CNN = ModelContents(convolutions=True, linear=True)
ENCODER = ModelContents(linear=True, attention=True, varying_length=True)
LSTM = ModelContents(linear=True, recurrent=True, lstm=True, varying_length=True)
MODELS = (MLP, CNN, ENCODER, LSTM, ModelContents())


def tried(
    model: ModelContents, machine: Machine = ZEN_4, auto: AutoExport | None = None
) -> list[str]:
    found = candidates(auto or AutoExport(), model, machine)
    return [one.label for one in found if one.left_out is None]


def left_out(model: ModelContents, machine: Machine = ZEN_4) -> dict[str, str]:
    found = candidates(AutoExport(), model, machine)
    return {one.label: one.left_out for one in found if one.left_out is not None}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("machine", [ZEN_4, AVX2, Machine()])
def test_the_portable_one_comes_first_and_torchscript_never(
    model: ModelContents, machine: Machine
) -> None:
    labels = tried(model, machine)
    assert labels[0] == "onnx"
    assert len(labels) == len(set(labels))
    assert not any(label.startswith("torchscript") for label in labels)
    found = [one.left_out is None for one in candidates(AutoExport(), model, machine)]
    assert found == sorted(found, reverse=True)  # those left out come last


@pytest.mark.parametrize(
    ("model", "machine", "first"),
    [
        (
            CNN,
            ZEN_4,
            ["openvino-int8 static", "aoti-int8 static", "onnx-int8 static", "openvino-bf16"],
        ),
        (CNN, AVX2, ["openvino-int8 static", "onnx-int8 static"]),
        (MLP, ZEN_4, ["onnx-int8 dynamic", "onnx-int8 static", "openvino-int8 static"]),
        (ENCODER, ZEN_4, ["openvino-int8 static", "aoti-int8 static", "onnx-int8 dynamic"]),
        (ENCODER, AVX2, ["aoti", "openvino"]),
        (LSTM, ZEN_4, ["onnx-int8 dynamic"]),
    ],
)
def test_a_small_budget_goes_to_what_was_fastest(
    model: ModelContents, machine: Machine, first: list[str]
) -> None:
    assert tried(model, machine)[1 : len(first) + 1] == first


def test_recurrent_layers_are_quantized_by_what_takes_them() -> None:
    assert tried(LSTM)[:2] == ["onnx", "onnx-int8 dynamic"]
    assert {"pt2", "aoti", "openvino", "openvino-int8 weights"} <= set(tried(LSTM))
    assert "method: dynamic or weights alone" in left_out(LSTM)["openvino-int8 static"]
    assert "there are none" in left_out(ModelContents(recurrent=True))["pt2-int8 weights"]


def test_fp16_is_tried_where_it_can_be_proven() -> None:
    assert left_out(CNN)["onnx-fp16"] == "no GPU"
    assert "onnx-fp16" in tried(CNN, replace(ZEN_4, without_fp16=""))


def test_lstm_is_quantized_where_there_is_one() -> None:
    def quantized(model: ModelContents) -> tuple[str, ...]:
        for one in candidates(AutoExport(), model, ZEN_4):
            if isinstance(one.entry, OnnxInt8Export) and one.entry.method == "dynamic":
                return one.entry.op_types
        raise AssertionError("dynamic quantization is not offered")

    assert "LSTM" in quantized(LSTM)
    assert "LSTM" not in quantized(MLP)


def test_convolutions_are_not_quantized_dynamically() -> None:
    assert "4 times slower" in left_out(CNN)["onnx-int8 dynamic"]


def test_bfloat16_is_for_processors_that_have_it() -> None:
    assert not [label for label in tried(CNN, AVX2) if "bf16" in label]
    assert "no instructions for bfloat16" in left_out(CNN, AVX2)["aoti-bf16"]
    assert {"openvino-bf16", "aoti-bf16", "pt2-bf16"} <= set(tried(CNN))


def test_what_is_not_installed_is_left_out_with_what_to_install() -> None:
    bare = Machine(cpu_features=ZEN_4.cpu_features, without_fp16="no GPU")
    shipped = AutoExport(kinds=("onnx", "openvino", "pt2", "aoti"))
    assert tried(CNN, bare, shipped) == ["onnx", "onnx-int8 static", "pt2-bf16", "pt2"]
    reasons = left_out(CNN, bare)
    openvino, torchao = (install_command(extra) for extra in ("openvino-train", "train"))
    assert reasons["openvino"] == f"openvino is not installed; {openvino}"
    assert reasons["pt2-int8 static"] == f"torchao is not installed; {torchao}"
    assert reasons["aoti"] == "there is no C++ compiler; install g++"
    half = Machine(packages=frozenset({"openvino"}))
    assert left_out(CNN, half)["openvino-int8 static"].startswith("nncf is not installed")
    assert "openvino" in tried(CNN, half)


def test_a_model_without_products_is_not_quantized() -> None:
    assert not [label for label in tried(ModelContents()) if "int8" in label]


def test_the_recipe_says_what_may_be_tried_and_what_it_must_keep() -> None:
    auto = AutoExport.model_validate(
        {
            "kinds": ["torchscript", "onnx"],
            "precisions": ["int8"],
            "calibration_rows": 32,
            "tolerance": {"int8": {"max_abs_difference": 3}},
        }
    )
    assert tried(CNN, ZEN_4, auto) == ["onnx", "onnx-int8 static"]  # FP32 to compare with
    entry = candidates(auto, CNN, ZEN_4)[1].entry
    assert isinstance(entry, OnnxInt8Export)
    assert (entry.calibration_rows, entry.tolerance.max_abs_difference) == (32, 3)
    scripts = AutoExport(kinds=("torchscript", "onnx"))
    assert tried(CNN, ZEN_4, scripts)[-2:] == ["torchscript trace", "torchscript script"]
    assert tried(CNN, ZEN_4, AutoExport(kinds=("pt2",), precisions=("fp32",))) == ["pt2"]


class Attends(nn.Module):
    """Attention as a function call, which no layer of the model contains."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (SmallCnn(width=4), (1, 8, 8), ModelContents(convolutions=True, linear=True)),
        (Perceptron(), (4, 6), ModelContents(linear=True)),
        (Recurrent(), (4, 6), ModelContents(linear=True, recurrent=True)),
        (Attends(), (4, 6), ModelContents(attention=True)),
        (nn.LSTM(6, 2), (6,), ModelContents(recurrent=True, lstm=True)),
    ],
)
def test_a_model_is_read_by_its_layers_and_its_calls(
    model: nn.Module, shape: tuple[int, ...], expected: ModelContents
) -> None:
    signature = one_to_one(shape)
    example = {"x": np.zeros((2, *shape), np.float32)}
    model.eval()
    if isinstance(model, nn.LSTM):
        model = First(model)
    assert model_contents(model, example, signature) == expected


class First(nn.Module):
    """Returns the states of a layer, without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.layer(x)[0]
        return states


def test_padding_means_that_lengths_vary() -> None:
    signature = one_to_one((-1, 6), (3,), padding=Padding(inputs={"x": 1}, buckets=(4, 8)))
    example = {"x": np.zeros((2, 4, 6), np.float32)}
    assert model_contents(Perceptron().eval(), example, signature).varying_length


def test_two_candidates_are_told_apart_by_their_labels() -> None:
    one, other = (Candidate(OnnxInt8Export(method=m), None) for m in ("static", "dynamic"))
    assert (one.label, other.label) == ("onnx-int8 static", "onnx-int8 dynamic")
