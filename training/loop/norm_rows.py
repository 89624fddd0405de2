"""Refuses batch norms that would get a single row, before the training begins.

In training a batch norm needs two values of each channel. A linear layer before it gives one per
row, so the short last batch of an epoch, or a process's share of it, can be too short. A forward
pass of two rows finds that here, and not at the end of the first epoch.

Rule: nothing that could run is refused. Norms after images or sequences get several values of each
channel from one row.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor, nn

from training.distributed.ranks import Ranks
from training.errors import RecipeError
from training.loading.splits import Split
from training.loop.device import device_of
from training.recipe.recipe import Recipe

BatchNorm = nn.modules.batchnorm._BatchNorm
LEAST = 2
"""Values of a channel that have a variance."""


def check_norm_rows(
    model: nn.Module,
    held: Collection[nn.Module],
    example: Split,
    rows: int,
    recipe: Recipe,
    ranks: Ranks,
) -> None:
    """Refuses a batch size that leaves a batch norm a single row.

    Args:
        model: the whole network.
        held: layers that stay in evaluation mode.
        example: a split of which two rows are run.
        rows: rows of one epoch.
        recipe: has the batch size.
        ranks: processes that share each batch.

    Raises:
        RecipeError: the message has the norm, the number of its rows, and the remedy.
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
    """Returns the fewest rows that one of several processes gets of any batch of an epoch.

    A process without rows of its own runs a row of another process.
    """
    batches = [size] * (rows >= size) + [rows % size] * (rows % size > 0)
    return max(min(batches) // world, 1)


def _near(rows: int, size: int, world: int) -> int | None:
    """Returns the nearest batch size that leaves no process a single row; the larger of two."""
    for step in range(1, size + LEAST * world + 1):
        for other in (size + step, size - step):
            if other >= LEAST and _shortest(rows, other, world) >= LEAST:
                return other
    return None


@torch.no_grad()
def _numbers(model: nn.Module, norms: dict[str, nn.Module], example: Split) -> dict[str, int]:
    """Returns the number of values of each channel that each norm gets from one row."""
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
