"""Exports a checkpoint to TorchScript, by tracing or compiling.

torch has deprecated it: it remains for hosts that need it.
"""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from flambeau.protocol.signature import Signature
from model_store.manifest import Precision
from training.errors import ExportError
from training.exporters.exporter import ExportJob
from training.network.preprocessing import change_network
from training.network.runner import Runner, module_runner
from training.process.quiet import quiet
from training.programs.own_operators import check_script
from training.recipe.user_code import place_in_words

TORCHS_LAYERS = Path(nn.__file__).parent
"""Folder whose warnings are only about shape checks: torch's own layers do not branch on data.
nn.LSTM, nn.GRU and nn.RNN, group and instance norms and attention with its weights warn."""


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
    """Traces or compiles the model and writes the result; see `Exporter.write`.

    Raises:
        ExportError: the model calls custom operators, or its own code branches on data or shapes,
            which a trace would freeze as in the example.
        Exception: any exception of torch for a model it cannot trace.
    """
    # The deprecation is known: the user sees one line about it.
    with quiet(DeprecationWarning), torch.inference_mode():
        if job.method == "script":
            model = change_network(model, torch.jit.script)
        if not isinstance(model, torch.jit.ScriptModule):  # the steps have no control flow
            model = _traced(model, example)
        check_script(model)
        torch.jit.save(model, str(job.path))


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens a file in torch; see `Exporter.open_file`."""
    with quiet(DeprecationWarning):
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return module_runner(module, signature)


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
