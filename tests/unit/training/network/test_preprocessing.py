"""Preprocessing: the same steps in training and in every artifact, proven from raw inputs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_model
from torch import nn

from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import Array
from tests.unit.training.raw_images import STEPS, raw_splits
from tests.unit.training.recipes import recipe
from training.datasets import Split, Splits
from training.errors import DataError, ExportError, RecipeError, TargetError
from training.exporters.export import Exported, export_one
from training.exporters.exporter import ExportJob
from training.loop.loop import Trained
from training.loop.train_state import TrainState
from training.network.model import build_model, run_model, try_model
from training.network.preprocessing import LookupLayer, network_of, with_statistics
from training.recipe.file import parse_recipe, resolved_yaml
from training.recipe.parts.preprocess import Lookup
from training.recipe.recipe import Recipe
from training.verification.verify import reference, verify

DYNAMIC = {"image": {2: [6, 20], 3: [6, 16]}}
EXPORTS = {
    "torchscript": {"kind": "torchscript"},
    "onnx": {"kind": "onnx"},
    "onnx-int8": {"kind": "onnx", "precision": "int8"},
    "pt2": {"kind": "pt2"},
    "pt2-int8": {"kind": "pt2", "precision": "int8"},
    "pt2-bf16": {"kind": "pt2", "precision": "bf16"},
    "openvino": {"kind": "openvino"},
    "openvino-int8": {"kind": "openvino", "precision": "int8"},
}
LONG = {"pt2-int8", "pt2-bf16", "openvino-int8"}


def raw_recipe(**changes: Any) -> Recipe:
    chosen = {"preprocess": STEPS, "dynamic": DYNAMIC, "export": list(EXPORTS.values()), **changes}
    return with_statistics(recipe(**chosen), raw_splits())


def trained(chosen: Recipe, splits: Splits, folder: Path) -> Trained:
    torch.manual_seed(0)
    model = build_model(chosen, list(splits.train.inputs)).eval()
    weights = folder / "weights.safetensors"
    save_model(model, str(weights))
    signature = try_model(model, splits, chosen)
    return Trained(model=model, weights=weights, signature=signature, state=TrainState())


class Exports:
    """The artifacts of one network, each made when a test asks for it first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[str, Exported]()
        self._trained = trained(raw_recipe(), raw_splits(), folder)
        self.expected, _ = reference(self._trained, raw_splits().test)

    def __getitem__(self, name: str) -> Exported:
        if name not in self._made:
            chosen = raw_recipe(export=[EXPORTS[name]])
            (self._made[name],) = exported_here(chosen, self._trained, raw_splits(), self._folder)
        return self._made[name]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return Exports(tmp_path_factory.mktemp("raw"))


def exported_here(chosen: Recipe, found: Trained, splits: Splits, folder: Path) -> list[Exported]:
    """Exports like `export_all`, without a process for each, which would import all again."""
    rows = splits.train.inputs
    graph = folder / "model.onnx"
    for entry in chosen.listed_exports():
        export_one(ExportJob(chosen, found.weights, found.signature, entry, rows, folder, graph))
    return [Exported(entry, folder / entry.file, None) for entry in chosen.listed_exports()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in EXPORTS]
)
def test_every_kind_answers_raw_inputs_as_the_checkpoint_does(name: str, exports: Exports) -> None:
    assert exports.expected.golden_inputs["image"].dtype == np.uint8
    found = verify(exports[name], exports.expected)
    assert found.refusal is None
    assert found.max_abs_difference is not None
    assert found.max_abs_difference < (1e-5 if found.precision == "fp32" else 0.1)


@pytest.mark.long
def test_quantizers_leave_the_steps_as_they_are(exports: Exports) -> None:
    """The blur is a convolution like the network's three; only those are in 8 bits."""
    import onnx
    import openvino
    import torchao.quantization.pt2e  # noqa: F401 - it registers the operators

    nodes = onnx.load(exports["onnx-int8"].path).graph.node
    quantized = {output for n in nodes if n.op_type == "DequantizeLinear" for output in n.output}
    convolutions = [quantized.issuperset(n.input[:2]) for n in nodes if n.op_type == "Conv"]
    assert sorted(convolutions) == [False, True, True, True]

    graph = torch.export.load(exports["pt2-int8"].path).graph
    inputs = [str(n.args[0]) for n in graph.nodes if "conv2d" in str(n.target)]
    assert ["dequantize" in name for name in inputs] == [False, True, True, True]

    operations = openvino.Core().read_model(exports["openvino-int8"].path).get_ordered_ops()
    kinds = [op.get_type_name() for op in operations]
    assert kinds.index("Interpolate") < kinds.index("FakeQuantize")
    assert kinds.count("Convolution") + kinds.count("GroupConvolution") == 4


def answer(model: nn.Module, image: Array) -> Any:
    return next(iter(run_model(model, [image]).values()))


def test_the_steps_are_those_of_training(tmp_path: Path) -> None:
    """A changed step changes what the same weights answer."""
    rows = [raw_splits().test.inputs["image"][:4]]
    found = trained(raw_recipe(), raw_splits(), tmp_path).model
    blunt = raw_recipe(
        preprocess=[*STEPS[:3], {"resize": {"height": 8, "width": 8, "antialias": True}}]
    )
    other = build_model(blunt, ["image"]).eval()
    other.load_state_dict(found.state_dict())
    assert np.abs(answer(found, rows[0]) - answer(other, rows[0])).max() > 1e-3


def test_the_steps_are_what_they_say() -> None:
    model = build_model(raw_recipe(), ["image"]).eval()
    image = raw_splits().test.inputs["image"][:2]
    seen = np.asarray(raw_splits().train.inputs["image"], np.float64)
    plain = torch.from_numpy((image.astype(np.float64) - seen.mean()) / seen.std()).float()
    blurred = nn.functional.avg_pool2d(plain, 3, stride=1, padding=1)
    small = nn.functional.interpolate(blurred, (8, 8), mode="bilinear")
    with torch.no_grad():
        right = network_of(model)(small).numpy()
    np.testing.assert_allclose(answer(model, image), right, atol=1e-5)


def test_the_stored_recipe_has_the_figures() -> None:
    found = raw_recipe()
    step = found.preprocess[1].normalize
    assert step is not None
    seen = np.asarray(raw_splits().train.inputs["image"], np.float64)
    assert step.mean == pytest.approx([seen.mean() / 16])
    assert not step.fit
    assert parse_recipe(resolved_yaml(found), "stored") == found
    assert with_statistics(found, raw_splits()) == found


def test_characters_become_numbers_of_a_vocabulary() -> None:
    layer = LookupLayer(Lookup(vocabulary="abé", length=5))
    text = torch.tensor([[ord("b"), ord("é"), ord("?"), 0x1F600], [0, ord("a"), -1, 0]])
    assert layer(text).tolist() == [[3, 4, 1, 1, 0], [0, 2, 1, 0, 0]]
    assert layer(text.repeat(1, 2)).tolist() == [[3, 4, 1, 1, 3], [0, 2, 1, 0, 0]]
    assert LookupLayer(Lookup(vocabulary=(97, 98)))(torch.tensor([[98]], dtype=torch.uint8)) == 3


class Reader(nn.Module):
    """Counts letters, and reads the classes off them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4, padding_idx=0)
        self.head = nn.Linear(4, 3)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.embed(text).sum(dim=1))
        return logits


def test_text_is_read_from_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def split() -> Split:
        labels = random.integers(0, 3, 48)
        text = random.choice(np.frombuffer(b"abcz", np.uint8), (48, 6))
        return Split({"text": text}, labels)

    splits = Splits(split(), split(), split())
    chosen = recipe(
        model={"target": "tests.unit.training.network.test_preprocessing:Reader"},
        preprocess=[{"lookup": {"vocabulary": "abc", "length": 9}}],
        dynamic={"text": {1: [2, 12]}},
        export=[EXPORTS["torchscript"], EXPORTS["onnx"]],
    )
    found = trained(chosen, splits, tmp_path)
    assert found.signature.inputs[0].datatype == "UINT8"
    expected, _ = reference(found, splits.test)
    for artifact in exported_here(chosen, found, splits, tmp_path):
        assert verify(artifact, expected).refusal is None, artifact.entry.name


def test_a_script_keeps_its_control_flow_behind_the_steps(tmp_path: Path) -> None:
    chosen = raw_recipe(
        model={"target": "tests.unit.training.small_networks:DependsOnData"},
        export=[{"kind": "torchscript", "method": "script"}],
    )
    found = trained(chosen, raw_splits(), tmp_path)
    expected, _ = reference(found, raw_splits().test)
    (artifact,) = exported_here(chosen, found, raw_splits(), tmp_path)
    assert verify(artifact, expected).refusal is None


def test_openvino_says_what_it_lacks(tmp_path: Path) -> None:
    resize = {"resize": {"height": 8, "width": 8, "antialias": True}}
    chosen = raw_recipe(preprocess=[STEPS[0], resize], export=[{"kind": "openvino"}])
    found = trained(chosen, raw_splits(), tmp_path)
    with pytest.raises(ExportError, match=r"preprocess.1.resize has antialias: true, and OpenVINO"):
        exported_here(chosen, found, raw_splits(), tmp_path)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"normalise": {"fit": True}}], "unknown key 'normalise' in 'preprocess.0' (did you mean"),
        ([{"scale": {}, "resize": {"height": 8, "width": 8}}], "a step has exactly one key"),
        ([{}], "a step has exactly one key, and this one has none"),
        ([{"normalize": {}}], "give mean and std, or fit: true to measure them"),
        ([{"normalize": {"fit": True, "mean": [1]}}], "give either fit or the two"),
        ([{"normalize": {"mean": [1, 2], "std": [1]}}], "mean has 2 numbers and std 1"),
        ([{"normalize": {"mean": [1], "std": [0]}}], "a number above 0"),
        ([{"lookup": {"vocabulary": "aba"}}], "'a' occurs twice"),
        ([{"scale": {}}, {"python": {"target": "a.py:B"}}], "step 1 is python"),
    ],
)
def test_steps_that_are_none_are_named(steps: Sequence[Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        recipe(preprocess=steps)
    assert message in explain(refused.value, Recipe)


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        ([{"scale": {"input": "imgae"}}], RecipeError, "names input 'imgae'.*did you mean 'image'"),
        (
            [{"scale": {}}, {"normalize": {"mean": [1, 2, 3], "std": [1, 2, 3]}}],
            RecipeError,
            r"preprocess.1.normalize: input 'image' is float32 \[2, 1, 12, 12\] here, and mean and "
            "std have 3 numbers",
        ),
        (
            [{"resize": {"height": 8, "width": 8}}],
            RecipeError,
            "it takes floating-point numbers; put a scale before it",
        ),
        (
            [{"scale": {}}, {"lookup": {"vocabulary": "a"}}],
            RecipeError,
            "it takes whole numbers",
        ),
        (
            [{"module": {"target": "tests.unit.training.raw_images:Blurr"}}],
            TargetError,
            "preprocess.0.module.target: .*has no 'Blurr'.*did you mean 'Blur'",
        ),
        (
            [{"module": {"target": "tests.unit.training.raw_images:Blur"}}],
            TargetError,
            r"preprocess.0.module fails: input 'image' is uint8 \[2, 1, 12, 12\]",
        ),
    ],
)
def test_steps_that_do_not_fit_are_named(
    steps: Sequence[Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        trained(raw_recipe(preprocess=steps), raw_splits(), tmp_path)


class Pair(nn.Module):
    """Gives two tensors."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return image, image


class Total(nn.Module):
    """Gives one number for all rows."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.sum()


class First(nn.Module):
    """Gives the first row only."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image[:1]


@pytest.mark.parametrize(
    ("module", "given"),
    [("Pair", "tuple"), ("Total", r"int64 \[\]"), ("First", r"uint8 \[1, 1, 12, 12\]")],
)
def test_a_module_that_gives_no_tensor_of_as_many_rows_is_named(
    module: str, given: str, tmp_path: Path
) -> None:
    steps = [{"module": {"target": f"{__name__}:{module}"}}]
    words = f"preprocess.0.module gives {given}: .*; give one tensor of as many rows"
    with pytest.raises(TargetError, match=words):
        trained(recipe(preprocess=steps), raw_splits(), tmp_path)


def test_a_resize_needs_an_image(tmp_path: Path) -> None:
    rows: dict[str, Array] = {"image": np.zeros((4, 12), np.float32)}
    flat = Split(rows, np.zeros(4, np.int64))
    chosen = recipe(preprocess=[{"resize": {"height": 8, "width": 8}}])
    with pytest.raises(RecipeError, match=r"float32 \[2, 12\] here, and it takes \[rows, channels"):
        trained(chosen, Splits(flat, flat, flat), tmp_path)


def test_a_channel_that_never_varies_has_no_statistics() -> None:
    rows: dict[str, Array] = {"image": np.ones((4, 2, 8, 8), np.uint8)}
    flat = Split(rows, np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"preprocess.0.normalize: channels \[0, 1\] of input"):
        with_statistics(recipe(preprocess=[{"normalize": {"fit": True}}]), Splits(flat, flat, flat))


def test_the_only_input_needs_no_name_and_one_of_several_does() -> None:
    with pytest.raises(RecipeError, match=r"preprocess.0.scale names no input, and there are"):
        build_model(recipe(preprocess=[{"scale": {}}]), ["image", "mask"])
