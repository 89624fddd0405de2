"""The Python step of a version: code that turns raw inputs into those of the model.

In: the source of one file, whose digest has been checked and which may be run here. Out: a function
from raw arrays to the model's inputs, whose results are checked. Training and every server use
this same function.

A step is a class (or a function that makes a function): called with its settings once, and then,
perhaps in several processes, with the arrays of each batch. It raises ValueError for rows that it
cannot take, which is the caller's fault; whatever else it raises is its own.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from model_store.signature import TensorSpec
from model_store.strict import nearest_name
from model_store.tensors import Array, TensorError, datatype_of

StepFunction = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Raw inputs by name, each [rows, ...], to those of the model; a ValueError refuses the rows."""


class PythonStepError(Exception):
    """The step itself is wrong: its file, its settings or what it returns."""


def open_step(
    source: bytes, name: str, args: Mapping[str, Any], path: str | None = None
) -> StepFunction:
    """Runs the file, and makes the step.

    Args:
        source: of the file, Python in UTF-8. It is code: the caller has decided to trust it.
        name: of the class in it.
        args: keyword arguments of the class.
        path: of the file, which errors in it then name; None for a name of ours.

    Raises:
        PythonStepError: the file does not run, has no such name, or that cannot be made.
    """
    module = _module(source, path)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise PythonStepError(f"its file has no '{name}'{nearest_name(name, public)}")
    try:
        step = getattr(module, name)(**args)
    except Exception as error:  # the code is the user's: it may raise anything
        raise PythonStepError(f"{name}({_text(args)}) fails: {error!r}") from error
    if not callable(step):
        raise PythonStepError(
            f"{name}({_text(args)}) made a {type(step).__name__}; make a callable"
        )

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return _checked(name, step(dict(inputs)), len(next(iter(inputs.values()))))

    return run


def check_result(found: Mapping[str, Array], specs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """What a step gave, in the order in which the model takes it.

    Raises:
        PythonStepError: an input of the model is missing or too much, or not as it was in training.
    """
    wanted = [spec.name for spec in specs]
    if set(found) != set(wanted):
        raise PythonStepError(f"the python step gave {sorted(found)}; the model takes {wanted}")
    for spec in specs:
        array = found[spec.name]
        if datatype_of(array) != spec.datatype or not spec.fits(array.shape):
            raise PythonStepError(
                f"the python step gave '{spec.name}' as {datatype_of(array)} {list(array.shape)}; "
                f"the model takes {spec.datatype} {list(spec.shape)}"
            )
    return {name: found[name] for name in wanted}


def _module(source: bytes, path: str | None) -> ModuleType:
    # Each has a name of its own, under which classes find the module that they are in.
    name = f"flambeau_step_{hashlib.sha256(source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    sys.modules[name] = module
    try:
        code = compile(source, path or f"{name}.py", "exec")
        exec(code, vars(module))  # noqa: S102 - it is trusted
    except BaseException as error:  # it may even exit
        del sys.modules[name]
        raise PythonStepError(f"its file does not run: {error!r}") from error
    return module


def _checked(name: str, found: object, rows: int) -> dict[str, Array]:
    if not isinstance(found, Mapping) or not found:
        raise PythonStepError(
            f"{name} returned a {type(found).__name__}; return arrays by input name"
        )
    arrays: dict[str, Array] = {}
    for key, value in found.items():
        array = arrays[str(key)] = np.ascontiguousarray(value)
        if array.ndim == 0 or len(array) != rows:
            raise PythonStepError(
                f"{name} returned '{key}' of shape {list(array.shape)} for {rows} rows; "
                "return one for each"
            )
        try:
            datatype = datatype_of(array)
        except TensorError as error:
            raise PythonStepError(f"{name} returned '{key}': {error}") from error
        if datatype == "BYTES":
            raise PythonStepError(f"{name} returned '{key}' as text or objects; return numbers")
    return arrays


def _text(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in args.items())[:200]
