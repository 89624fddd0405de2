"""Checkpoint to TorchScript, by tracing or compiling.

torch has deprecated it: it is kept for hosts that need it.
"""

import warnings
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from training.exporters.own_operators import check_script
from training.preprocessing import change_network
from training.quiet import quiet


def export_torchscript(
    model: nn.Module, example: tuple[Tensor, ...], path: Path, method: Literal["trace", "script"]
) -> None:
    """Traces or compiles the model and writes the result.

    Args:
        model: in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows.
        path: the file to write.
        method: whether it is run once, or its code compiled.

    Raises:
        ExportError: it calls operators of its own.
        Exception: whatever torch raises for a model it cannot trace, a TracerWarning included:
            control flow that depends on the data would be frozen as the example ran it.
    """
    # The deprecation is known: the user is told in one line.
    with quiet(DeprecationWarning), torch.inference_mode():
        warnings.simplefilter("error", TracerWarning)
        if method == "script":
            model = change_network(model, torch.jit.script)
        if not isinstance(model, torch.jit.ScriptModule):  # the steps have no control flow
            model = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
        check_script(model)
        torch.jit.save(model, str(path))
