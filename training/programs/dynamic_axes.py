"""Describes the variable axes of a model's inputs for torch's exporters."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from flambeau.protocol.signature import Signature


def axes_of_arguments(
    function: Callable[..., Any], signature: Signature
) -> tuple[dict[int, Any] | tuple[dict[int, Any], ...], ...]:
    """Returns `dynamic_axes` in the form of a function's arguments.

    Args:
        function: exported function, a module's `forward`; it may take all inputs as `*inputs`,
            which count as one argument.
        signature: signature of the model.
    """
    axes = dynamic_axes(signature)
    parameters = inspect.signature(function).parameters.values()
    return (axes,) if any(p.kind is p.VAR_POSITIONAL for p in parameters) else axes


def dynamic_axes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """Returns the variable axes of each input: the batch, and those of padding or `dynamic`.

    Args:
        signature: signature of the model. The batch goes from 1 to its largest, the length from 1
            to the last bucket, another axis from its smallest to its largest size.
    """
    batch = torch.export.Dim("batch", min=1, max=max(signature.max_batch_size, 2))
    axes: list[dict[int, Any]] = [
        {} if spec.batch_axis is None else {spec.batch_axis: batch} for spec in signature.inputs
    ]
    for number, (spec, varying) in enumerate(zip(signature.inputs, axes, strict=True)):
        for axis, (low, high) in signature.dynamic.get(spec.name, {}).items():
            varying[axis] = torch.export.Dim(f"size_{number}_{axis}", min=low, max=high)
    padding = signature.padding
    if padding is not None:
        length = torch.export.Dim("length", min=1, max=padding.buckets[-1])
        for spec, varying in zip(signature.inputs, axes, strict=True):
            if (padded := padding.axis_of(spec.name)) is not None:
                varying[padded] = length
    return tuple(axes)
