"""Inputs of several sizes: their signature, and the verification of artifacts."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from rich.console import Console
from torch import Tensor, nn

from flambeau.protocol.signature import Padding, Signature, SignatureError, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.arrays.sized_rows import at_other_sizes
from tests.unit.training.recipes import recipe, splits, untrained
from training.datasets import Splits
from training.errors import DataError, RecipeError, TargetError
from training.exporters.export import Exported, export_all
from training.loop.loop import Trained
from training.network.model import build_model, try_model
from training.network.runner import module_runner
from training.recipe.recipe import Recipe
from training.verification import verify as verify_module
from training.verification.verify import reference, verify

DYNAMIC = {"image": {2: [6, 12], 3: [8, 16]}}
EXPORTS = [{"kind": "onnx"}, {"kind": "torchscript"}, {"kind": "onnx", "precision": "int8"}]


def sized_recipe(**changes: Any) -> Recipe:
    model = {
        "target": "training.models.residual_cnn:ResidualCnn",
        "args": {"width": 8, "classes": 3},
    }
    return recipe(**{"model": model, "dynamic": DYNAMIC, "export": EXPORTS, **changes})


def signature(**changes: Any) -> Signature:
    spec = TensorSpec(name="image", datatype="FP32", shape=(-1, 1, -1, -1))
    logits = TensorSpec(name="logits", datatype="FP32", shape=(-1, 3))
    document = {"inputs": (spec,), "outputs": (logits,), "max_batch_size": 4, "dynamic": DYNAMIC}
    return Signature.model_validate({**document, **changes})


@pytest.mark.timeout(3)
def test_rows_are_resized_in_time_that_grows_with_the_size_alone() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, -1))
    sized = Signature(
        inputs=(spec,), outputs=(spec,), max_batch_size=4, dynamic={"x": {1: (2, 500_000)}}
    )
    smallest, largest, _ = at_other_sizes({"x": np.array([[1, 2]], np.float32)}, sized)
    assert smallest["x"].tolist() == [[1, 2]]
    assert largest["x"].shape == (1, 500_000)
    assert largest["x"][0, -4:].tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("size", [(6, 8), (12, 16), (7, 11)])
def test_a_request_within_the_sizes_fits(size: tuple[int, int]) -> None:
    assert signature().check_inputs({"image": ("FP32", (2, 1, *size))}) == 2


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((5, 8), "input 'image' has shape [1,1,5,8], and size 5 along axis 2; give 6 to 12"),
        ((6, 17), "input 'image' has shape [1,1,6,17], and size 17 along axis 3; give 8 to 16"),
    ],
)
def test_a_request_of_another_size_is_refused(size: tuple[int, int], message: str) -> None:
    with pytest.raises(SignatureError) as refused:
        signature().check_inputs({"image": ("FP32", (1, 1, *size))})
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"images": {2: [1, 2]}}, "dynamic names input 'images', which the model does not have"),
        ({"image": {1: [1, 2]}}, "dynamic says axis 1 of input 'image' varies"),
        ({"image": {4: [1, 2]}}, "dynamic says axis 4 of input 'image' varies"),
        ({"image": {2: [9, 9]}}, "give the smallest size, from 1 up, and a larger one"),
        ({"image": {2: [0, 9]}}, "give the smallest size, from 1 up, and a larger one"),
        ({"image": {0: [1, 9]}}, "it is the batch"),
    ],
)
def test_axes_that_cannot_vary_are_named(dynamic: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        signature(dynamic=dynamic)
    assert message in str(refused.value)


def test_an_axis_belongs_to_the_padding_or_to_dynamic() -> None:
    padding = Padding(inputs={"image": 2}, buckets=(12,))
    with pytest.raises(ValidationError, match="is both in dynamic and in padding"):
        signature(padding=padding)
    assert signature(padding=padding, dynamic={"image": {3: [8, 16]}}).padding == padding


def test_a_signature_survives_json_and_says_nothing_of_what_it_has_not() -> None:
    assert Signature.model_validate_json(signature().model_dump_json()) == signature()
    assert "dynamic" not in signature(dynamic={}).model_dump()


def test_rows_are_cut_and_repeated_to_the_ends_of_every_range_and_between() -> None:
    rows: dict[str, Array] = {"image": np.arange(64.0).reshape(1, 1, 8, 8)}
    found = [sized["image"] for sized in at_other_sizes(rows, signature())]
    assert [array.shape[2:] for array in found] == [(6, 8), (12, 16), (8, 13)]
    np.testing.assert_array_equal(found[0], rows["image"][:, :, :6])
    np.testing.assert_array_equal(found[1][..., 8:, 8:], rows["image"][:, :, :4])
    assert at_other_sizes(rows, signature(dynamic={})) == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return untrained(sized_recipe(), splits(), tmp_path_factory.mktemp("weights"))


def test_every_kind_takes_every_size_and_is_proven(trained: Trained, tmp_path: Path) -> None:
    assert trained.signature.inputs[0].shape == (-1, 1, -1, -1)
    assert trained.signature.outputs[0].shape == (-1, 3)
    expected, _ = reference(trained, splits().test)
    console = Console(file=io.StringIO())
    for artifact in export_all(sized_recipe(), trained, splits(), tmp_path, console):
        found = verify(artifact, expected)
        assert found.refusal is None, artifact.entry.name
        if artifact.entry.precision == "fp32":
            assert found.max_abs_difference is not None
            assert found.max_abs_difference < 1e-5


def test_an_artifact_that_is_wrong_at_one_size_is_refused(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = reference(trained, splits().test)
    right = module_runner(trained.model, trained.signature)

    def wrong_when_large(inputs: dict[str, Array]) -> dict[str, Array]:
        found = right(inputs)
        return {"logits": found["logits"] + (inputs["image"].shape[2] == 12)}

    monkeypatch.setattr(verify_module, "file_runner", lambda *_: wrong_when_large)
    (tmp_path / "model.onnx").write_bytes(b"")
    chosen = sized_recipe(export=[{"kind": "onnx"}]).listed_exports()[0]
    exported = Exported(chosen, tmp_path / "model.onnx", None)
    assert "largest difference 1 is above" in str(verify(exported, expected).refusal)


class Sharpened(nn.Module):
    """Gives an image of the size it was given, and its mean."""

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        return image.mean(dim=(1, 2, 3))[:, None].expand(-1, 3), 2 * image


def test_outputs_vary_where_they_vary() -> None:
    chosen = sized_recipe(
        model={"target": f"{__name__}:Sharpened", "outputs": ["logits", "sharpened"]}
    )
    found = try_model(Sharpened(), splits(), chosen)
    assert [spec.shape for spec in found.outputs] == [(-1, 3), (-1, 1, -1, -1)]


class OnlyEight(nn.Module):
    """Takes the size of the data and no other."""

    def forward(self, image: Tensor) -> Tensor:
        return image.reshape(-1, 64)[:, :3]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dynamic": {"image": {2: [9, 12]}}}, DataError, "does not fit dynamic: input 'image'"),
        ({"dynamic": {"picture": {2: [6, 12]}}}, RecipeError, "dynamic names input 'picture'"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    chosen = sized_recipe(**changes)
    with pytest.raises(error, match=message):
        try_model(build_model(chosen), splits(), chosen)


def test_a_model_that_takes_one_size_only_is_refused_before_training() -> None:
    odd = {"image": {2: [5, 12], 3: [7, 16]}}
    with pytest.raises(TargetError, match=r"fails on inputs 'image' \[2, 1, 5, 7\]"):
        try_model(OnlyEight(), splits(), sized_recipe(dynamic=odd))


def test_the_sizes_do_not_decide_the_weights() -> None:
    assert sized_recipe().training_digest() == sized_recipe(dynamic={}).training_digest()


def test_the_data_keeps_its_own_size() -> None:
    found: Splits = splits()
    image = found.train.inputs["image"]
    smaller = {"image": image[:, :, :4]}
    with pytest.raises(DataError, match="size 4 along axis 2; give 6 to 12"):
        try_model(
            build_model(sized_recipe()),
            replace(found, train=replace(found.train, inputs=smaller)),
            sized_recipe(),
        )
