"""Python models: opens and copies the files of a class that users bring.

In: the class's file, with its side files beside it and, in `model.python.json`, its description as
in a manifest. Out: a runner.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from torch import Tensor, nn

from flambeau.protocol.python_model import Network
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.manifest import Precision, PythonModel
from model_store.python_models.network_file import read_network
from model_store.python_models.open_model import OpenModel
from training.errors import ExportError
from training.exporters.exporter import ExportJob
from training.network.runner import Runner

_ERRORS_ONLY = 3


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> NoReturn:
    """Refuses: no network becomes a Python model; see `Exporter.write`."""
    raise ExportError("a network is no Python model; publish its class with flambeau.publish")


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens a class; see `Exporter.open_file`."""
    return open_class(path, signature.outputs).run


def open_class(path: Path, outputs: Sequence[TensorSpec] | None) -> OpenModel:
    """Opens a class in this process, which is to be one of its own.

    Args:
        path: path of the class's file.
        outputs: outputs of the signature; None to find out what it returns.

    Raises:
        PythonModelError: it cannot be created or loaded.
    """
    described = description_of(path)
    if any(entry.file.endswith(".py") for entry in described.files):
        sys.path.append(str(path.parent))  # behind all else: no side file hides a package
    return OpenModel(
        path.read_bytes(), path, described, outputs, device="cpu", open_network=_open_network
    )


def description_path(path: Path) -> Path:
    """Returns the path of the description beside a class's file."""
    return path.with_suffix(".python.json")


def description_of(path: Path) -> PythonModel:
    """Reads the description beside a class's file."""
    return PythonModel.model_validate_json(description_path(path).read_bytes())


def copy_class(source: Path, target: Path) -> None:
    """Copies a class's file, its description and its side files."""
    shutil.copyfile(source, target)
    shutil.copyfile(description_path(source), description_path(target))
    for entry in description_of(source).files:
        shutil.copyfile(source.parent / entry.file, target.parent / entry.file)


def _open_network(path: Path) -> Network:
    """Opens an ONNX file, on one thread; servers do it in `backends/python_model.py`."""
    import onnxruntime

    data = read_network(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(given: Mapping[str, Array] | None = None, /, **inputs: Array) -> dict[str, Array]:
        values = session.run(names, {**(given or {}), **inputs})
        return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}

    return run
