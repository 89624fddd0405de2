"""Reads a file of weights that another program wrote.

In: a safetensors file, or a `state_dict` that `torch.save` wrote. Out: tensors by name.

Rules: a pickle is read with `weights_only=True`, so no code of the file runs; an archive that
unpacks to more bytes than it has is refused; a file that holds anything but named tensors is
refused.
"""

import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training.errors import RecipeError
from training.recipe.user_code import headline

NAMES_SAID = 5
_ADVICE = "save it with torch.save(model.state_dict(), FILE), or as safetensors"
_FOREIGN = re.compile(r"GLOBAL (\S+)")
"""A class or function that a pickle would import, in torch's message."""


def read_weights_file(path: Path, name: str) -> dict[str, Tensor]:
    """Returns the tensors of a file, on the CPU.

    Args:
        path: place of the file.
        name: its path in the recipe, for messages.

    Raises:
        RecipeError: the file is damaged, holds other objects than named tensors, or a NaN.
    """
    found = _safetensors(path, name) if path.suffix == ".safetensors" else _pickled(path, name)
    if not isinstance(found, dict) or not found:
        kind = type(found).__name__
        what = f"holds a {kind}" if not isinstance(found, dict) else f"holds an empty {kind}"
        raise RecipeError(f"weights {name} {what}, and no state_dict; {_ADVICE}")
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            keys = ", ".join(str(each)[:100] for each in list(found)[:NAMES_SAID])
            raise RecipeError(
                f"weights {name} is no plain state_dict: it holds {keys}, of which "
                f"'{str(key)[:100]}' is a {type(value).__name__}; save the state_dict alone, as by "
                "torch.save(model.state_dict(), FILE)"
            )
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise RecipeError(
                f"weights {name}: {key} is sparse, quantized or without values; save dense weights"
            )
        if value.is_floating_point() and value.isnan().any():
            raise RecipeError(f"weights {name}: {key} holds nan; take weights that are numbers")
    return found


def _safetensors(path: Path, name: str) -> Any:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RecipeError(
            f"weights {name} cannot be read as safetensors: {headline(error)}; write it with "
            "safetensors.torch.save_file"
        ) from error


def _pickled(path: Path, name: str) -> Any:
    if zipfile.is_zipfile(path):
        _check_archive(path, name)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several unrelated types
        foreign = _FOREIGN.search(str(error))
        reason = "is damaged, or holds other objects than tensors"
        if foreign is not None:
            reason = f"is a pickle that imports {foreign[1]}, which may run code"
        raise RecipeError(f"weights {name} {reason}, so it is no state_dict; {_ADVICE}") from error


def _check_archive(path: Path, name: str) -> None:
    """Refuses an archive that `torch.save` did not write.

    Raises:
        RecipeError: it is a TorchScript program, is damaged, or unpacks to more bytes than it has.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise RecipeError(f"weights {name} is a damaged archive: {error}; {_ADVICE}") from error
    if any("/code/" in entry.filename for entry in entries):
        raise RecipeError(f"weights {name} is a TorchScript program, and no state_dict; {_ADVICE}")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > path.stat().st_size:  # torch.save compresses nothing
        raise RecipeError(
            f"weights {name} unpacks to {unpacked:,} bytes, more than it has; {_ADVICE}"
        )
