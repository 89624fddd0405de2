"""Loads files of `torch.save`: the only place that unpickles, and only if the user has allowed it.

In: a path, and the user's `--allow-pickle`. Out: the stored object. Runs in the isolated process.

Rule: without permission torch's restricted unpickler makes tensors and plain containers, and
refuses everything else before any of it runs.
"""

import re
from pathlib import Path

import torch

from training.errors import SourceError
from training.importing.sources.torch_programs.program_safety import WHAT_CODE_CAN_DO
from training.process.root_cause import root_cause


def load_torch_file(path: Path, allow_pickle: bool) -> object:
    """Returns the object in a file.

    Args:
        path: the file.
        allow_pickle: True to run the code that a pickle names.

    Raises:
        SourceError: it is no such file, or needs to be unpickled without permission.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=not allow_pickle)
    except Exception as error:  # torch raises many types, and a pickle any
        if allow_pickle:
            raise SourceError(
                f"{path.name} cannot be unpickled: {root_cause(error)}; its classes must be "
                "importable here"
            ) from None
        if needed := _needed(str(error)):
            raise SourceError(
                f"{path.name} is no file of plain weights: unpickling it would run code "
                f"({needed}). Save model.state_dict() in its place; {WHAT_CODE_CAN_DO}"
            ) from None
        raise SourceError(
            f"{path.name} is no checkpoint of torch, or damaged: {root_cause(error)}; save it again"
        ) from None


def _needed(text: str) -> str:
    """Returns what the restricted unpickler has refused; empty if it failed by something else."""
    if (found := re.search(r"GLOBAL ([\w.]+)", text)) is not None:
        return found[1]
    return "it holds more than tensors" if "weights_only" in text else ""
