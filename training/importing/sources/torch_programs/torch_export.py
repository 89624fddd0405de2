"""Exports a module of a foreign source to a `.pt2` file. Runs in the isolated process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from flambeau.protocol.tensors import Array
from flambeau.publishing.recurrent_layers import whole_recurrent_layers
from training.errors import SourceError
from training.importing.sources.examination import model_inputs
from training.importing.sources.read_tensor import (
    ReadTensor,
    batch_axes,
    input_specs,
    largest_batch,
)
from training.importing.sources.source_options import SourceOptions
from training.network.row_dependence import ROUNDING_SHARE
from training.process.quiet import quiet
from training.process.root_cause import root_cause
from training.programs.exported_program import CHATTY_LOGGERS

MIN_ROWS = 2
"""torch.export specialises on 0 and 1 rows."""


def export_module(
    module: nn.Module,
    inputs: Sequence[ReadTensor],
    examples: Mapping[str, Array],
    options: SourceOptions,
    path: Path,
) -> None:
    """Writes the program of a module.

    Args:
        module: takes the inputs in order as `*inputs`, and returns a tensor or a tuple of them.
        inputs: the inputs, with the dimensions that vary.
        examples: inputs by name, [rows, ...].
        options: the largest batch.
        path: output file.

    Raises:
        SourceError: torch cannot export it.
    """
    axes = batch_axes(inputs)
    most = largest_batch(path.name, inputs, options)
    dims: list[dict[int, Any]] = []
    for tensor in inputs:
        varying: dict[int, Any] = {}
        for axis, size in enumerate(tensor.dims):
            if axis == axes[tensor.name]:
                varying[axis] = torch.export.Dim.DYNAMIC(min=1, max=max(most, MIN_ROWS))
            elif isinstance(size, str):
                low, high = tensor.ranges.get(axis, (None, None))
                varying[axis] = torch.export.Dim.DYNAMIC(min=low, max=high)
        dims.append(varying)
    rows = max(min(len(next(iter(examples.values()))), 4), MIN_ROWS)
    batch = model_inputs(examples, input_specs(path.name, inputs), rows)
    arguments = tuple(torch.from_numpy(array.copy()) for array in batch.values())
    with quiet(loggers=CHATTY_LOGGERS), torch.no_grad(), whole_recurrent_layers():
        try:
            program = torch.export.export(module, arguments, dynamic_shapes=(tuple(dims),))
            _check_equal(module(*arguments), program.module()(*arguments))
            torch.export.save(program, path)
        except SourceError:
            raise
        except Exception as error:  # torch raises many types
            raise SourceError(
                f"torch.export cannot export the network: {root_cause(error)}; save it as "
                "TorchScript or ONNX where it was trained, and import that"
            ) from None


def _check_equal(wanted: Any, found: Any) -> None:
    """Compares the program with the network that it was made from."""
    pairs = zip(pytree.tree_leaves(wanted), pytree.tree_leaves(found), strict=True)
    for number, (one, other) in enumerate(pairs):
        largest = float(one.abs().max()) if one.numel() else 0.0
        if not torch.allclose(one, other, rtol=0.0, atol=ROUNDING_SHARE * largest, equal_nan=True):
            raise SourceError(
                f"torch.export changes output {number} of the network; save it as TorchScript or "
                "ONNX where it was trained, and import that"
            )
