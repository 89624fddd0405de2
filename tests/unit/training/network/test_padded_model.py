"""A model whose inputs vary in length: its signature, its artifacts, and their proof."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from flambeau.protocol.tensors import Array
from model_store.arrays.parity import Comparison, worst
from tests.unit.training.padded_texts import (
    CLASSES,
    PADDING,
    MaskedMean,
    text_recipe,
    text_splits,
)
from tests.unit.training.recipes import untrained
from training.datasets import Split, Splits
from training.errors import DataError, RecipeError, TargetError
from training.exporters.export import Exported, export_all
from training.loop.loop import Trained
from training.network.model import try_model
from training.network.runner import module_runner
from training.recipe.kinds.onnx_kind import OnnxExport
from training.verification import verify as verify_module
from training.verification.runners import file_runner
from training.verification.verify import Reference, reference, replay, verify

EXPORTS = [{"kind": "onnx"}, {"kind": "torchscript"}, {"kind": "onnx", "precision": "int8"}]


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return untrained(text_recipe(), text_splits(), tmp_path)


@pytest.fixture
def expected(trained: Trained) -> Reference:
    return reference(trained, text_splits().test)[0]


def test_the_named_axes_vary_and_the_others_are_as_the_data_has_them(trained: Trained) -> None:
    signature = trained.signature
    specs = (*signature.inputs, *signature.outputs)
    assert {spec.name: spec.shape for spec in specs} == {
        "tokens": (-1, -1),
        "mask": (-1, -1),
        "logits": (-1, CLASSES),
        "each": (-1, -1, CLASSES),
    }
    assert signature.padding == text_recipe().padding


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": {"token": 1}}, "padding names input 'token', which the model does not have"),
        ({"inputs": {"tokens": 2}}, "padding says axis 2 of input 'tokens' holds the length"),
        ({"outputs": {"each": 3}}, "padding says axis 3 of output 'each' holds the length"),
        ({"mask": "masks"}, "padding.mask is 'masks', which is no input (did you mean 'mask'?)"),
    ],
)
def test_a_padding_that_does_not_fit_the_model_is_refused_before_training(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        try_model(MaskedMean(), text_splits(), text_recipe(padding={**PADDING, **changes}))
    assert message in str(refused.value)


def test_an_output_that_varies_must_be_named() -> None:
    recipe = text_recipe(padding={**PADDING, "outputs": {}})
    with pytest.raises(TargetError, match=r"'each' .*padding\.outputs must name each axis"):
        try_model(MaskedMean(), text_splits(), recipe)


def test_a_model_that_takes_only_the_length_of_the_data_is_refused_before_training() -> None:
    class OnlyTwelve(MaskedMean):
        def forward(
            self, tokens: torch.Tensor, mask: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return super().forward(tokens.view(-1, 12), mask)

    with pytest.raises(TargetError, match=r"fails on inputs 'tokens' \[1, \d+\]"):
        try_model(OnlyTwelve(), text_splits(), text_recipe())


def unmasked(split: Split) -> Split:
    mask = split.inputs["mask"].copy()
    mask[3, ::2] = False
    return Split({**split.inputs, "mask": mask}, split.labels)


@pytest.mark.parametrize(
    ("splits", "padding", "message"),
    [
        (text_splits(), {**PADDING, "buckets": [4, 8]}, "have length 12; at most 8 fit"),
        (text_splits(shortest=12), PADDING, "each of the 64 golden rows fills its bucket"),
        (
            Splits(unmasked(text_splits().train), text_splits().validation, text_splits().test),
            PADDING,
            "row 3 of 'mask' is not ones followed by zeros",
        ),
    ],
)
def test_data_that_does_not_fit_the_padding_is_refused_before_training(
    splits: Splits, padding: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as refused:
        try_model(MaskedMean(), splits, text_recipe(padding=padding))
    assert message in str(refused.value)


def test_every_kind_takes_every_length_and_is_proven(trained: Trained, tmp_path: Path) -> None:
    recipe, splits = text_recipe(export=EXPORTS), text_splits()
    expected, _ = reference(trained, splits.test)
    for artifact in export_all(recipe, trained, splits, tmp_path, Console(file=io.StringIO())):
        assert artifact.failure is None
        entry = artifact.entry
        run = file_runner(entry.kind, entry.precision, artifact.path, trained.signature)
        for rows, length in ((1, 1), (2, 5), (16, 12)):
            inputs: dict[str, Array] = {
                "tokens": np.ones((rows, length), np.int64),
                "mask": np.ones((rows, length), np.bool_),
            }
            assert run(inputs)["each"].shape == (rows, length, CLASSES)
        assert verify(artifact, expected).refusal is None


def right(trained: Trained) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    return module_runner(trained.model, trained.signature)


def replayed_padded(
    run: Callable[[Mapping[str, Array]], dict[str, Array]], expected: Reference
) -> list[Comparison]:
    found, _ = replay(run, expected)
    return [one for one in found if "alone" in one.where or "padded" in one.where]


def test_a_model_that_masks_gives_padded_rows_what_they_have_alone(
    trained: Trained, expected: Reference
) -> None:
    parity = worst([found.parity for found in replayed_padded(right(trained), expected)])
    assert parity.max_abs_difference < 1e-6
    assert parity.agreement == 1


def test_a_model_that_looks_at_padding_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "tests.unit.training.padded_texts:MaskedMean"
    model = {"target": target, "args": {"safe": False}, "outputs": ["logits", "each"]}
    unsafe = untrained(text_recipe(model=model), text_splits(), tmp_path)
    expected, _ = reference(unsafe, text_splits().test)
    monkeypatch.setattr(verify_module, "file_runner", lambda *_: right(unsafe))
    found = verify(Exported(OnnxExport(), unsafe.weights, None), expected)
    assert found.refusal is not None
    assert found.refusal.startswith("golden rows padded in a batch: largest difference")
    assert found.max_abs_difference is not None
    assert found.max_abs_difference > 1e-2


def wrong_when(
    trained: Trained, condition: Callable[[Array], bool]
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Right, but for the last row's logits of some batches, told by their mask."""

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = {name: array.copy() for name, array in right(trained)(inputs).items()}
        if condition(inputs["mask"]):
            outputs["logits"][-1] = np.roll(outputs["logits"][-1], 1)
        return outputs

    return run


@pytest.mark.parametrize(
    "condition",
    [
        lambda mask: mask.shape == (1, 5),  # one row alone, at a length of its own
        lambda mask: mask.shape[1] == 8 and len(mask) > 1,  # padded rows of one bucket
    ],
)
def test_a_mistake_at_one_length_is_found(
    trained: Trained, expected: Reference, condition: Callable[[Array], bool]
) -> None:
    compared = replayed_padded(wrong_when(trained, condition), expected)
    parity = worst([found.parity for found in compared])
    assert parity.max_abs_difference > 1e-3
    assert 0.5 < parity.agreement < 1


def test_a_model_without_padding_has_nothing_to_compare(
    trained: Trained, expected: Reference
) -> None:
    plain = Reference(
        signature=expected.signature.model_copy(update={"padding": None}),
        golden_inputs=expected.golden_inputs,
        golden_outputs=expected.golden_outputs,
        test=expected.test,
        test_outputs=expected.test_outputs,
    )
    assert replayed_padded(right(trained), plain) == []


def test_the_padding_does_not_decide_the_weights() -> None:
    assert text_recipe().training_digest() == text_recipe(padding=None).training_digest()
