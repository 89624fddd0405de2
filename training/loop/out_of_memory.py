"""Reports memory that runs out in training with advice.

PyTorch raises an error of its own on a GPU, and a plain `RuntimeError` on the CPU.
"""

import contextlib
from collections.abc import Iterator

import torch

from model_store.host.memory_limit import tells_of_memory
from training.errors import MemoryRunOutError
from training.process.root_cause import root_cause
from training.recipe.recipe import Recipe


@contextlib.contextmanager
def memory_named(recipe: Recipe) -> Iterator[None]:
    """Reports memory that runs out within the block, with the batch size and the remedy.

    Raises:
        MemoryRunOutError: memory ran out; checkpoints that were written stay.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_of_memory(error):
            raise
        size = recipe.data.batch_size
        smaller = max(size // 2, 1)
        raise MemoryRunOutError(
            f"memory ran out in training with data.batch_size {size} ({root_cause(error)}); take "
            f"data.batch_size {smaller} with optim.accumulate {2 * recipe.optim.accumulate} for "
            "the same steps, train.activation_checkpoint, or train.precision bf16; the last "
            "checkpoint is kept"
        ) from error


def is_of_memory(error: Exception) -> bool:
    """Returns True if an error says that memory ran out, the host's or a device's."""
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    text = str(error)
    of_device = isinstance(error, torch.OutOfMemoryError) or "out of memory" in text
    return of_device or tells_of_memory(text)
