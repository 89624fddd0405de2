"""Batch norms that would see a single row: refused before the training begins.

A batch norm in training needs two numbers of each channel. A linear layer before it gives one for
each row, so the short last batch of an epoch, or a process's share of it, can be too short; that is
found here by a look at two rows, and not at the end of the first epoch.

Rule kept here: nothing is refused that could run. Norms behind images or sequences have several
numbers of each channel in a row.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor, nn

from training.datasets import Split
from training.distributed.ranks import Ranks
from training.errors import RecipeError
from training.loop.device import device_of
from training.recipe.recipe import Recipe

BatchNorm = nn.modules.batchnorm._BatchNorm
LEAST = 2
"""Numbers of a channel that have a deviation."""


def check_norm_rows(
    model: nn.Module,
    held: Collection[nn.Module],
    example: Split,
    rows: int,
    recipe: Recipe,
    ranks: Ranks,
) -> None:
    """Refuses a size of batches that leaves a batch norm a single row.

    Args:
        model: the whole network.
        held: layers that stay in evaluation mode.
        example: two rows of it are run.
        rows: of one epoch.
        recipe: has the size of a batch.
        ranks: who share it.

    Raises:
        RecipeError: the message has the norm, how many rows it would see, and what to change.
    """
    sync = recipe.train.sync_batch_norm or ranks.world == 1
    size = recipe.data.batch_size
    short = _shortest(rows, size, 1 if sync else ranks.world)
    norms: dict[str, nn.Module] = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, BatchNorm) and layer not in held
    }
    if short >= LEAST or not norms:
        return
    name = next((n for n, numbers in _numbers(model, norms, example).items() if numbers == 1), None)
    if name is None:
        return
    last = rows % size or size
    if ranks.world == size == 1:
        found = "every batch has 1 row (data.batch_size 1)"
    elif ranks.world == 1:
        found = f"the last batch of an epoch has 1 row ({rows} rows, data.batch_size {size})"
    else:
        found = (
            f"{ranks.world} processes share each batch, and of the last one of an epoch ({last} of "
            f"{rows} rows, data.batch_size {size}) one has a single row"
        )
    advice = []
    if not sync and _shortest(rows, size, 1) >= LEAST:
        advice.append("set train.sync_batch_norm: true")
    if (other := _near(rows, size, 1 if sync else ranks.world)) is not None:
        advice.append(f"take data.batch_size {other}")
    advice.append("take nn.LayerNorm or nn.GroupNorm")
    raise RecipeError(
        f"{found}, and batch norm '{name}' needs {LEAST} in training; {', or '.join(advice)}"
    )


def _shortest(rows: int, size: int, world: int) -> int:
    """The fewest rows that one of several processes gets of any batch of an epoch.

    A process without any runs another's row along.
    """
    batches = [size] * (rows >= size) + [rows % size] * (rows % size > 0)
    return max(min(batches) // world, 1)


def _near(rows: int, size: int, world: int) -> int | None:
    """The nearest size of batches that leaves no process a single row; the larger of two."""
    for step in range(1, size + LEAST * world + 1):
        for other in (size + step, size - step):
            if other >= LEAST and _shortest(rows, other, world) >= LEAST:
                return other
    return None


@torch.no_grad()
def _numbers(model: nn.Module, norms: dict[str, nn.Module], example: Split) -> dict[str, int]:
    """How many numbers of each channel one row gives each norm."""
    found: dict[str, int] = {}

    def look(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        found[name] = x.numel() // x.shape[1] // LEAST

    state, training = torch.get_rng_state(), model.training
    handles = [
        layer.register_forward_pre_hook(partial(look, name)) for name, layer in norms.items()
    ]
    try:
        device = device_of(model)
        arrays = [array[:LEAST].copy() for array in example.inputs.values()]
        model.eval()(*(torch.from_numpy(array).to(device) for array in arrays))
    finally:
        for handle in handles:
            handle.remove()
        model.train(training)
        torch.set_rng_state(state)
    return found
