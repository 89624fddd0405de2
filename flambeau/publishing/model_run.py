"""Runs a caller's model on tensors, and compares results.

In: a module or a function, and its inputs by name. Out: its outputs as arrays, by name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flambeau.protocol import rounding
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from flambeau.publishing.errors import CaptureError, ExampleError
from flambeau.publishing.network_outputs import OutputError, named_outputs

ROUNDING_SHARE = 1e-4
"""Share of the largest output: a smaller difference is FP32 rounding in another batch size."""
HALF_ROUNDING_SHARE = 1e-2
"""The same for outputs in FP16."""

Model = nn.Module | Callable[..., Any]


def run_model(
    model: Model, names: Sequence[str] | None, inputs: Mapping[str, Tensor]
) -> dict[str, Array]:
    """Runs one batch; returns the outputs by name.

    Args:
        model: the model; it gets copies of the inputs, in order.
        names: names of the outputs; see `named_outputs`.
        inputs: one batch.

    Raises:
        ExampleError: it fails.
        CaptureError: its outputs have no names, or types that servers do not answer with.
    """
    shapes = ", ".join(f"'{name}' {list(tensor.shape)}" for name, tensor in inputs.items())
    try:
        with torch.inference_mode():
            found = named_outputs(model(*(t.clone() for t in inputs.values())), names)
    except OutputError as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # the caller's code may raise anything
        lines = str(error).strip().splitlines()
        raise ExampleError(
            f"the model fails on the examples {shapes}: {type(error).__name__}: "
            f"{lines[0] if lines else ''}"
        ) from error
    return {name: _array(name, tensor) for name, tensor in found.items()}


def _array(name: str, tensor: Tensor) -> Array:
    try:
        array: Array = tensor.detach().cpu().numpy()
        datatype_of(array)
    except (TensorError, TypeError, RuntimeError) as error:
        raise CaptureError(
            f"output '{name}' is {tensor.dtype}, which servers cannot answer with; return "
            "y.float(), or another type of numbers"
        ) from error
    return array


def gap(one: Array, other: Array) -> str | None:
    """Describes the difference of two results for the same rows; None for rounding at most."""
    half = one.dtype == np.float16
    return rounding.gap(one, other, HALF_ROUNDING_SHARE if half else ROUNDING_SHARE)


def check_finite(outputs: Mapping[str, Array]) -> None:
    """Refuses outputs that are no finite numbers; no artifact could be compared with them.

    Raises:
        CaptureError: a number is infinite or undefined.
    """
    for name, one in outputs.items():
        if one.dtype.kind == "f" and not np.isfinite(one).all():
            place = [int(index) for index in np.argwhere(~np.isfinite(one))[0]]
            raise CaptureError(
                f"output '{name}' is {one[tuple(place)]} at {place} for the examples; give "
                "examples whose outputs are finite numbers"
            )


class CalledByName(nn.Module):
    """A model that gets its inputs by name, where arguments between them are left out.

    Args:
        network: the model.
        inputs: names of its inputs, in order.
    """

    def __init__(self, network: Model, inputs: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.inputs = tuple(inputs)
        self.training = False

    def forward(self, *inputs: Tensor) -> Any:
        """Returns the model's result."""
        return self.network(**dict(zip(self.inputs, inputs, strict=True)))
