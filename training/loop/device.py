"""The device of a run: resolves its name in the recipe, and saves its random state.

In: `train.device` of a recipe. Out: a `torch.device`, and the device's state for a checkpoint.

Rule: only training uses the device. Data, weights in files, and everything that is exported or
verified are in the host's memory.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.errors import RecipeError

CPU = torch.device("cpu")


def training_device(name: str) -> torch.device:
    """Returns the device of a recipe.

    Args:
        name: `auto` for the accelerator that torch finds, or else the CPU; `cpu`, `cuda` or
            `cuda:N`.

    Raises:
        RecipeError: the device does not exist.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        device = CPU if found is None else found
    else:
        device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise RecipeError(
                f"train.device is {name}, and torch {torch.__version__} finds {count} CUDA GPUs "
                "here; take auto or cpu, or install a torch that fits the driver"
            )
        # cuBLAS is reproducible only with this setting, and reads it at its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return device


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of a model's parameters; the CPU if it has none."""
    first = next(model.parameters(), None)
    return CPU if first is None else first.device


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Returns a GPU's random state for a checkpoint; that of the CPU is saved elsewhere."""
    return {"cuda_random": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}


def restore_random_state(device: torch.device, saved: Mapping[str, Any]) -> None:
    """Restores a `random_state`, if one was saved on such a device."""
    if device.type == "cuda" and "cuda_random" in saved:
        torch.cuda.set_rng_state(saved["cuda_random"], device)
