"""The network of a recipe: made, and tried once before anything is trained."""

import numpy as np
import torch
from torch import Tensor, nn

from model_store.signature import Signature, TensorSpec
from model_store.tensors import Array, datatype_of
from training.datasets import Splits
from training.errors import DataError, TargetError
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
        DataError: a label is not one of the classes.
    """
    inputs = {name: array[:2] for name, array in splits.train.inputs.items()}
    shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in inputs.items())
    target = recipe.model.target
    try:
        outputs = run_model(model.eval(), list(inputs.values()))
    except Exception as error:  # the model is the user's: it may raise anything
        raise TargetError(f"model.target {target} fails on inputs {shapes}: {error!r}") from error
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
    return Signature(
        inputs=tuple(_spec(name, array) for name, array in inputs.items()),
        outputs=tuple(_spec(n, a) for n, a in zip(recipe.model.outputs, outputs, strict=True)),
        max_batch_size=recipe.max_batch_size,
    )


def run_model(model: nn.Module, inputs: list[Array]) -> list[Array]:
    """Runs a module once, without gradients.

    Args:
        model: in the mode it is to run in.
        inputs: its arguments in order, each [rows, ...].
    """
    with torch.inference_mode():
        # torch wants memory it may write to.
        found = model(*(torch.from_numpy(np.require(a, requirements="W")) for a in inputs))
    return [tensor.numpy() for tensor in ([found] if isinstance(found, Tensor) else found)]


def first_output(found: Tensor | tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """What is trained: the only output of a model, or the first of several."""
    return found if isinstance(found, Tensor) else found[0]


def _check_labels(splits: Splits, classes: int) -> None:
    labels = np.concatenate([s.labels for s in (splits.train, splits.validation, splits.test)])
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"labels go from {labels.min()} to {labels.max()}, and the model has {classes} "
            "classes; give model.args as many as the data has"
        )


def _spec(name: str, array: Array) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype_of(array), shape=(-1, *array.shape[1:]))
