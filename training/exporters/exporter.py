"""The interface of an exporter: the module that writes and runs the files of one kind."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import ArtifactKind
from model_store.manifest import Precision
from training.network.runner import Runner
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export
from training.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Input of the process that makes one entry."""

    recipe: Recipe
    """Recipe that builds the model."""
    weights: Path
    """Path of its weights, as safetensors."""
    signature: Signature
    entry: Export
    inputs: dict[str, Array]
    """Rows of training data, in argument order, each [rows, ...]: an example, and calibration rows
    for the ranges of activations."""
    folder: Path
    """Destination of the file."""
    graph: Path
    """The FP32 ONNX graph, from which others are made; the first entry that needs it makes it."""
    qat_weights: Path | None = None
    """Quantization-aware weights, for entries of `method: qat`."""

    @property
    def path(self) -> Path:
        """Path of the file to write."""
        return self.folder / self.entry.file

    @property
    def method(self) -> str:
        """Method of the entry; empty if its kind has only one."""
        return getattr(self.entry, "method", "")


class Exporter(Protocol):
    """A module of this package that writes and runs one kind."""

    def write(self, model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
        """Writes the artifact to the job's path.

        Args:
            model: model in evaluation mode.
            example: inputs in order, each [rows, ...] with at least two rows.
            job: the entry to make.

        Raises:
            ExportError: the model, or this machine, does not allow it.
            Exception: any exception of the libraries for an unsupported model.
        """

    def open_file(self, path: Path, precision: Precision, signature: Signature) -> Runner:
        """Opens a file that `write` wrote, on one thread.

        Raises:
            Exception: any exception of the runtime for a file that it cannot open.
        """


def exporter_of(kind: ArtifactKind) -> Exporter:
    """Imports the exporter of a kind."""
    return cast(Exporter, importlib.import_module(EXPORT_KINDS[kind].exporter))
