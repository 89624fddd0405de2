"""Where a run trains: the recipe's word for it, and tensors that have to go there.

In: `train.device` of a recipe. Out: a `torch.device`, and what a checkpoint has to know of it.

Rule kept here: only the training is done there. Data, weights in files, and whatever is exported or
proven lie in the host's memory.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.errors import RecipeError

CPU = torch.device("cpu")


def training_device(name: str) -> torch.device:
    """The device a recipe asks for.

    Args:
        name: `auto` for the accelerator that torch finds, or else the processor; `cpu`, `cuda` or
            `cuda:N`.

    Raises:
        RecipeError: it is not there.
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
        # cuBLAS gives the same bits twice with this only, and reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return device


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters lie; the processor, if it has none."""
    first = next(model.parameters(), None)
    return CPU if first is None else first.device


def random_state(device: torch.device) -> dict[str, Tensor]:
    """What a checkpoint holds of a GPU's random numbers; those of the processor it has."""
    return {"cuda_random": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}


def restore_random_state(device: torch.device, saved: Mapping[str, Any]) -> None:
    """Goes on from a `random_state`, if one was saved on such a device."""
    if device.type == "cuda" and "cuda_random" in saved:
        torch.cuda.set_rng_state(saved["cuda_random"], device)
