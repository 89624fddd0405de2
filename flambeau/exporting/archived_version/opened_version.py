"""Opens a version from a folder with its description, its network and its code."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flambeau.exporting.archived_version.networks import Processor, open_onnx, open_torchscript
from flambeau.exporting.archived_version.python_code import behind_step, open_model
from flambeau.exporting.archived_version.tensor import Run, Tensor

DESCRIPTION = "version.json"
"""File that describes the version."""
CODE_FOLDER = "model_code"
"""Folder of the version's Python files, and of what lies beside them."""


def open_version(
    folder: Path, found: Mapping[str, Any], outputs: Sequence[Tensor], processor: Processor
) -> Run:
    """Opens the network, behind its step if it has one; or the Python model.

    Args:
        folder: folder of the files.
        found: the description.
        outputs: outputs of the version.
        processor: what runs it.
    """
    if found["kind"] == "python":
        return open_model(folder / CODE_FOLDER, found["python"], outputs, processor)
    names = [one.name for one in outputs]
    if found["kind"] == "onnx":
        network = open_onnx(folder / found["file"], names, processor)
    else:
        network = open_torchscript(folder / found["file"], found["inputs"], names, processor)
    step = found.get("step")
    return network if step is None else behind_step(folder / CODE_FOLDER, step, network)
