"""Runs the Python step of a version: code that turns raw inputs into the model's inputs.

In: the source of one file, with its digest checked and permission to run here. Out: a function from
raw arrays to the model's inputs that checks its results. Training and all servers use this same
function.

A step is a class (or a function that returns a function). It is called once with its settings, and
then, perhaps in several processes, with the arrays of each batch. It raises ValueError for rows it
cannot process, which is the caller's fault; any other exception is a fault of the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flambeau.protocol.signature import TensorSpec
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from model_store.user_code import UserCodeError, load_name

StepFunction = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Maps raw inputs by name, each [rows, ...], to the model's; ValueError refuses the rows."""


class PythonStepError(Exception):
    """The step itself is faulty: its file, its settings or its results."""


def open_step(
    source: bytes, name: str, args: Mapping[str, Any], path: str | None = None
) -> StepFunction:
    """Runs the file, and creates the step.

    Args:
        source: Python source in UTF-8. It is executed: the caller has decided to trust it.
        name: name of the class in the file.
        args: keyword arguments of the class.
        path: path of the file, for tracebacks; None for a generated name.

    Raises:
        PythonStepError: the file does not run or lacks the class, or the class fails.
    """
    try:
        made = load_name(source, name, path)
    except UserCodeError as error:
        raise PythonStepError(str(error)) from error.__cause__
    try:
        step = made(**args)
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
    """Checks the results of a step, and returns them in the order of the model's inputs.

    Raises:
        PythonStepError: an input is missing or unknown, or has another datatype or shape.
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
