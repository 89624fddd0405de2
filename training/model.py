"""The network of a recipe: made, and tried once before anything is trained."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from model_store.signature import Signature, SignatureError, TensorSpec
from model_store.strict import explain
from model_store.tensors import Array, datatype_of
from training.datasets import Splits
from training.errors import DataError, RecipeError, TargetError
from training.padded_rows import own_lengths, padded_rows
from training.recipe import Recipe
from training.targets import call_target


def build_model(recipe: Recipe) -> nn.Module:
    """The recipe's network, with weights from the present random state.

    Raises:
        TargetError: the target cannot be found, does not take its arguments or is no module.
    """
    model = call_target(recipe.model.target, recipe.model.args, "model")
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"model.target {recipe.model.target} made a {type(model).__name__}; "
            "name a torch.nn.Module"
        )
    return model


def try_model(model: nn.Module, splits: Splits, recipe: Recipe) -> Signature:
    """Runs two rows, so that what does not fit fails here in words and not after the training.

    Returns:
        The signature: inputs as the data has them, outputs as the model gives them.

    Raises:
        TargetError: the model fails, gives another number of outputs than the recipe names, or its
            first output is not [rows, classes].
        DataError: a label is not one of the classes, or a row does not fit the padding.
        RecipeError: the padding does not fit the model's inputs and outputs.
    """
    inputs = {name: array[:2] for name, array in splits.train.inputs.items()}
    shapes, target = _shapes(inputs), recipe.model.target
    outputs = _try(model.eval(), inputs, target)
    if len(outputs) != len(recipe.model.outputs):
        raise TargetError(
            f"model.target {target} returns {len(outputs)} outputs and model.outputs names "
            f"{list(recipe.model.outputs)}; name each of them, in order"
        )
    if outputs[0].ndim != 2:
        raise TargetError(
            f"model.target {target} gives shape {list(outputs[0].shape)} for inputs {shapes}; "
            "the first output must be [rows, classes]"
        )
    _check_labels(splits, classes=outputs[0].shape[1])
    signature = _signature(recipe, inputs, outputs)
    if signature.padding is not None:
        _try_shorter_rows(model, splits, signature, target)
    return signature


def run_model(model: Callable[..., Any], inputs: list[Array]) -> list[Array]:
    """Runs a model once, without gradients.

    Args:
        model: a module in the mode it is to run in, or a function.
        inputs: its arguments in order, each [rows, ...].
    """
    with torch.inference_mode():
        # torch wants memory it may write to.
        found = model(*(torch.from_numpy(np.require(a, requirements="W")) for a in inputs))
    return [tensor.numpy() for tensor in ([found] if isinstance(found, Tensor) else found)]


def first_output(found: Tensor | tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """What is trained: the only output of a model, or the first of several."""
    return found if isinstance(found, Tensor) else found[0]


def _try(model: nn.Module, inputs: Mapping[str, Array], target: str) -> list[Array]:
    try:
        return run_model(model, list(inputs.values()))
    except Exception as error:  # the model is the user's: it may raise anything
        raise TargetError(
            f"model.target {target} fails on inputs {_shapes(inputs)}: {error!r}"
        ) from error


def _try_shorter_rows(model: nn.Module, splits: Splits, signature: Signature, target: str) -> None:
    """Every split fits the padding, and the model takes rows of their own length."""
    assert signature.padding is not None, "only a model with padding has shorter rows"
    for split in (splits.train, splits.validation, splits.test):
        shapes = {name: array.shape for name, array in split.inputs.items()}
        try:
            signature.padding.bucket_of(signature.length_of(shapes) or 0)
        except SignatureError as error:
            raise DataError(f"the data does not fit the padding: {error}") from error
        own_lengths(split.inputs, signature.padding)
    rows = padded_rows(splits.test.golden_inputs(), signature)
    for inputs in (rows.alone[0], rows.batches[-1][1]):
        found = zip(signature.outputs, _try(model, inputs, target), strict=True)
        for spec, array in found:
            if not spec.fits(array.shape):
                raise TargetError(
                    f"model.target {target} gives '{spec.name}' {list(array.shape)} for inputs "
                    f"{_shapes(inputs)}; padding.outputs must name each axis that varies"
                )


def _signature(recipe: Recipe, inputs: Mapping[str, Array], outputs: list[Array]) -> Signature:
    padding = recipe.padding
    output_axes = {} if padding is None else padding.outputs
    try:
        return Signature(
            inputs=tuple(
                _spec(name, array, None if padding is None else padding.axis_of(name))
                for name, array in inputs.items()
            ),
            outputs=tuple(
                _spec(name, array, output_axes.get(name))
                for name, array in zip(recipe.model.outputs, outputs, strict=True)
            ),
            max_batch_size=recipe.max_batch_size,
            padding=padding,
        )
    except ValidationError as error:
        raise RecipeError(f"padding does not fit the model: {explain(error, Signature)}") from error


def _shapes(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"'{name}' {list(array.shape)}" for name, array in inputs.items())


def _check_labels(splits: Splits, classes: int) -> None:
    labels = np.concatenate([s.labels for s in (splits.train, splits.validation, splits.test)])
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"labels go from {labels.min()} to {labels.max()}, and the model has {classes} "
            "classes; give model.args as many as the data has"
        )


def _spec(name: str, array: Array, varying: int | None) -> TensorSpec:
    """A tensor as it is, but for the batch and the axis that holds the length."""
    shape = (-1 if axis in (0, varying) else size for axis, size in enumerate(array.shape))
    return TensorSpec(name=name, datatype=datatype_of(array), shape=tuple(shape))
