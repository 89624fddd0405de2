"""Opens the Python code of a version: a model that is a class, or the step before a network."""

import asyncio
import importlib.util
import inspect
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flambeau.exporting.archived_version.networks import Processor, open_onnx
from flambeau.exporting.archived_version.tensor import Array, Run, Tensor


class FaultyModelError(Exception):
    """The model returned something that its version does not have; no row is at fault."""


class Context:
    """The context with which a model loads.

    Attributes:
        files: paths of its side files by name.
        args: its settings.
        device: `cpu` or `cuda:N`.
        logger: writes to the server's log.
    """

    def __init__(self, folder: Path, described: Mapping[str, Any], processor: Processor) -> None:
        self.files = {name: folder / name for name in described["files"]}
        self.args = described["args"]
        self.device = "cpu" if processor.gpu is None else f"cuda:{processor.gpu}"
        self.logger = logging.getLogger(described["name"])
        self._processor = processor

    def network(self, name: str) -> Run:
        """Opens an ONNX file among the side files."""
        return open_onnx(self.files[name], (), self._processor)


def open_model(
    folder: Path, described: Mapping[str, Any], outputs: Sequence[Tensor], processor: Processor
) -> Run:
    """Opens a model: a class with `infer` or `infer_one`, and perhaps `load`.

    Args:
        folder: folder of its files.
        described: its file, name, settings and side files.
        outputs: what it must return.
        processor: what runs its networks.

    Raises:
        TypeError: it gives many answers to a request.
    """
    model = getattr(_module(folder / described["file"]), described["name"])()
    loops: list[asyncio.AbstractEventLoop] = []

    def awaited(value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if not loops:
            loops.append(asyncio.new_event_loop())
        return loops[0].run_until_complete(_result_of(value))

    if hasattr(model, "load"):
        awaited(model.load(Context(folder, described, processor)))
    takes_rows = not hasattr(model, "infer")
    method = model.infer_one if takes_rows else model.infer
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise TypeError(f"{described['name']} gives many answers to a request, and one is sent")

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        for array in inputs.values():
            array.flags.writeable = False
        if not takes_rows:
            return _named(awaited(method(inputs)), outputs, len(next(iter(inputs.values()))))
        rows = [dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)]
        found = [_named(awaited(method(**row)), outputs, None) for row in rows]
        return {one.name: np.stack([row[one.name] for row in found]) for one in outputs}

    return run


def behind_step(folder: Path, described: Mapping[str, Any], network: Run) -> Run:
    """Returns a network that takes what a step takes.

    Args:
        folder: folder of the step's file.
        described: its file, name and settings.
        network: takes what the step returns.
    """
    step = getattr(_module(folder / described["file"]), described["name"])(**described["args"])

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return network({n: np.ascontiguousarray(a) for n, a in step(dict(inputs)).items()})

    return run


async def _result_of(value: Any) -> Any:
    return await value


def _named(value: Any, outputs: Sequence[Tensor], rows: int | None) -> Mapping[str, Array]:
    """Returns a model's value, for a batch of rows or for one row, as arrays that are checked."""
    named = value if isinstance(value, Mapping) else {outputs[0].name: value}
    found: dict[str, Array] = {}
    for one in outputs:
        given = named[one.name]
        if one.datatype == "BYTES":
            texts = given.tolist() if isinstance(given, np.ndarray) else given
            array = np.array(texts, np.object_)
            array = array.reshape(1) if rows is not None and not array.ndim else array
        else:
            array = np.asarray(given)
        if array.dtype != one.dtype and array.size:
            raise FaultyModelError(f"'{one.name}' is {array.dtype}, and it must be {one.datatype}")
        if not one.fits(array.shape if rows is None else array.shape[1:]):
            raise FaultyModelError(
                f"'{one.name}' has shape {array.shape}, and rows {one.row_shape}"
            )
        if rows is not None and len(array) != rows:
            raise FaultyModelError(f"'{one.name}' has {len(array)} rows, and the batch {rows}")
        found[one.name] = array
    return found


def _module(file: Path) -> ModuleType:
    """Runs a Python file; it can import the modules beside it."""
    sys.path.append(str(file.parent))  # behind all else: no file hides a package
    spec = importlib.util.spec_from_file_location(f"version_code_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
