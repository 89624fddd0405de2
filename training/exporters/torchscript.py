"""Checkpoint to TorchScript, by tracing or compiling.

torch has deprecated it: it is kept for hosts that need it.
"""

import warnings
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from training.errors import ExportError
from training.exporters.own_operators import check_script
from training.network.preprocessing import change_network
from training.process.quiet import quiet
from training.recipe.user_code import place_in_words

TORCHS_LAYERS = Path(nn.__file__).parent
"""Where warnings are about checks of shapes: layers of torch's own decide nothing by the data.
nn.LSTM, nn.GRU and nn.RNN, group and instance norms and attention with its weights warn."""


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
        ExportError: it calls operators of its own, or its own code decides by the data or by a
            shape, which a trace would freeze as the example ran it.
        Exception: whatever torch raises for a model it cannot trace.
    """
    # The deprecation is known: the user is told in one line.
    with quiet(DeprecationWarning), torch.inference_mode():
        if method == "script":
            model = change_network(model, torch.jit.script)
        if not isinstance(model, torch.jit.ScriptModule):  # the steps have no control flow
            model = _traced(model, example)
        check_script(model)
        torch.jit.save(model, str(path))


def _traced(model: nn.Module, example: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", TracerWarning)
        traced: torch.jit.ScriptModule = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
    for warning in seen:
        if not issubclass(warning.category, TracerWarning):
            continue
        if Path(warning.filename).is_relative_to(TORCHS_LAYERS):
            continue
        text, place = str(warning.message), place_in_words(warning.filename, warning.lineno)
        raise ExportError(
            f"TracerWarning: {text.split('. ')[0].split(chr(10))[0]} ({place}): a trace holds no "
            "control flow and no Python values, and would keep what the example gave; take method: "
            "script, or write it in operations on tensors"
        )
    return traced
