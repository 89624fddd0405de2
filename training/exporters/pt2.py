"""The exporter of `.pt2` archives of torch.export: torch's own interchange format."""

from pathlib import Path

import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from model_store.manifest import Precision
from training.exporters.exporter import ExportJob
from training.exporters.torch_program import program_of
from training.network.runner import Runner, callable_runner


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
    """Writes an exported program; see `Exporter.write`."""
    torch.export.save(program_of(model, example, job), job.path)


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens a file in torch; see `Exporter.open_file`."""
    return callable_runner(torch.export.load(path).module(), signature)
