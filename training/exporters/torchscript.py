"""Exports a checkpoint to TorchScript, by tracing or compiling.

torch has deprecated it: it remains for hosts that need it.
"""

import warnings
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from training.errors import ExportError
from training.network.preprocessing import change_network
from training.process.quiet import quiet
from training.programs.own_operators import check_script
from training.recipe.user_code import place_in_words

TORCHS_LAYERS = Path(nn.__file__).parent
"""Folder whose warnings are only about shape checks: torch's own layers do not branch on data.
nn.LSTM, nn.GRU and nn.RNN, group and instance norms and attention with its weights warn."""


def export_torchscript(
    model: nn.Module, example: tuple[Tensor, ...], path: Path, method: Literal["trace", "script"]
) -> None:
    """Traces or compiles the model and writes the result.

    Args:
        model: model in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows.
        path: output file.
        method: capture method: trace one run, or compile the code.

    Raises:
        ExportError: the model calls custom operators, or its own code branches on data or shapes,
            which a trace would freeze as in the example.
        Exception: any exception of torch for a model it cannot trace.
    """
    # The deprecation is known: the user sees one line about it.
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
