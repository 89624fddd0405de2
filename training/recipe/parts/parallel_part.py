"""The recipe keys for training in several processes. Pure."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from training.recipe.parts.recipe_part import RecipePart

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe


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


def check_parallel(recipe: "Recipe") -> None:
    """Rejects recipe keys that training in several processes does not support.

    Raises:
        ValueError: the recipe combines such keys.
    """
    train, optim = recipe.train, recipe.optim
    if train.parallel == "none":
        if train.processes > 1:
            raise ValueError(
                f"train.processes is {train.processes} and train.parallel none; take ddp or fsdp, "
                "or one process"
            )
        return
    check_shares(train.processes, recipe.data.batch_size, "data.batch_size")
    if optim.lbfgs is not None:
        raise ValueError(
            "optim.lbfgs searches along lines in one process; take another optimizer, or "
            "train.parallel none"
        )
    if optim.sparse_adam is not None:
        raise ValueError(
            "optim.sparse_adam has sparse gradients, which processes do not send each other; take "
            "another optimizer and embeddings with sparse=False, or train.parallel none"
        )
    if train.parallel == "ddp":
        return
    whole = [
        ("train.ema follows whole weights", train.ema is not None),
        ("train.precision fp16 scales whole gradients", train.precision == "fp16"),
        ("model.unfreeze_at changes which weights learn", recipe.model.unfreeze_at is not None),
        ("debug.gradients looks at whole gradients", bool(recipe.debug.gradients)),
        ("optim.muon moves whole matrices", optim.muon is not None),
        ("prune.at compares whole weights", recipe.prune is not None and bool(recipe.prune.at)),
        ("optim.adafactor moves whole matrices", optim.adafactor is not None),
    ]
    for what, asked in whole:
        if asked:
            raise ValueError(
                f"{what}, of which train.parallel fsdp leaves each process a share; drop it, or "
                "take ddp"
            )


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
