"""The recipe keys for training in several processes. Pure."""

from typing import Literal

from pydantic import Field

from training.recipe.parts.recipe_part import RecipePart


class ParallelPart(RecipePart):
    """Processes that share the rows of a step."""

    parallel: Literal["none", "ddp", "fsdp"] = "none"
    """Parallelism; each batch is split among the processes. `ddp` keeps the whole model in each
    process; `fsdp` keeps a share of the weights, the gradients and the optimizer state. Take `ddp`
    when steps are slow, `fsdp` when the model does not fit."""
    processes: int = Field(default=1, ge=1, le=1024)
    """Number of processes on this machine, each on its own GPU if there are any. The number of an
    external launcher, such as Kubeflow, has priority. Raise it with `parallel`."""
    sync_batch_norm: bool = False
    """True if batch norms normalise over the rows of all processes, as in one process, instead of
    per process. Set it if a process has few rows of a batch; each norm then synchronises all
    processes twice per step."""


def check_shares(processes: int, rows: int, what: str) -> None:
    """Checks that a batch has at least one row per process.

    Args:
        processes: number of processes.
        rows: number of rows of the batch.
        what: recipe key of that number, for the message.

    Raises:
        ValueError: the batch has fewer rows than processes.
    """
    if processes > rows:
        raise ValueError(
            f"{processes} processes share each batch, and {what} is {rows}; some would have no "
            "row: take fewer processes or larger batches"
        )
