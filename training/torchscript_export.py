"""Checkpoint to TorchScript, by tracing. torch has deprecated it: kept for hosts that need it."""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from training.quiet import quiet

DEPRECATION_NOTE = (
    "note: torch has deprecated TorchScript and develops it no further; "
    "serve the ONNX artifacts where you can"
)


def export_torchscript(model: nn.Module, example: tuple[Tensor, ...], path: Path) -> None:
    """Traces the model and writes the result.

    Args:
        model: in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows.
        path: the file to write.

    Raises:
        Exception: whatever torch raises for a model it cannot trace, a TracerWarning included:
            control flow that depends on the data would be frozen as the example ran it.
    """
    # The deprecation is known: the user is told in one line.
    with quiet(DeprecationWarning), torch.inference_mode():
        warnings.simplefilter("error", TracerWarning)
        traced = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path))
