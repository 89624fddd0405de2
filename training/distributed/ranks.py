"""The processes that train one model together, as each of them sees the others.

In: the environment that torchrun sets. Out: this process's rank, and values that all ranks share. A
single process sends nothing, and every value stays as it is, bit for bit.

Rules: messages between ranks other than gradients are small and in CPU memory, so that they never
wait for a GPU; rank 0 decides, and is the only one to write.
"""

import os
import random
import sys
from datetime import timedelta
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

Value = TypeVar("Value")

PATIENCE = timedelta(hours=1)
"""Timeout for a slow rank, for example while rank 0 writes a checkpoint. A dead rank is noticed at
once."""


class Ranks:
    """This process among those that train together.

    Args:
        rank: its rank, from 0.
        world: the number of ranks.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @property
    def is_first(self) -> bool:
        """True if this rank decides and writes."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """Returns the values of all ranks, in their order; all ranks must call it."""
        if self.world == 1:
            return [value]
        found: list[Value | None] = [None] * self.world
        dist.all_gather_object(found, value)
        return found  # type: ignore[return-value]

    def decided(self, value: Value) -> Value:
        """Returns rank 0's value."""
        return self.gather(value)[0]

    def sums(self, *values: float) -> list[float]:
        """Returns each value summed over all ranks."""
        if self.world == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed)
        return summed.tolist()

    def any_of(self, value: bool) -> bool:
        """Returns True if the value is true on any rank."""
        return value if self.world == 1 else self.sums(float(value))[0] > 0

    def share(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], bool]:
        """Returns this rank's rows of a batch: every `world`-th from its rank on.

        Returns:
            The rows; and False if there are none left for it. It then gets the batch's first row,
            since all ranks must run the model, and the row has no weight.
        """
        mine = rows[self.rank :: self.world]
        return (mine, True) if len(mine) else (rows[:1], False)

    def seed(self, seed: int, epoch: int) -> None:
        """Seeds the random generators of every rank but the first.

        Args:
            seed: the seed of the run.
            epoch: the next epoch.
        """
        if self.is_first:
            return
        own = np.random.SeedSequence((seed, self.rank, epoch)).generate_state(3)
        random.seed(int(own[0]))
        np.random.seed(int(own[1]))
        torch.manual_seed(int(own[2]))

    def leave(self) -> None:
        """Leaves the process group, once all ranks call this."""
        if self.world > 1:
            self.gather(None)
            dist.destroy_process_group()


ALONE = Ranks()


def started_by_torchrun() -> bool:
    """Returns True if torchrun has started this process."""
    return dist.is_torchelastic_launched()


def exit_rank(code: int) -> NoReturn:
    """Ends this process without the interpreter's finalization.

    A thread of gloo may still release the last tensor that it has sent. It needs the GIL for that;
    Python ends threads that request it during finalization, and the process aborts (`terminate
    called without an active exception`). torchrun would then restart all ranks.

    Args:
        code: exit code of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def join_ranks() -> Ranks:
    """Joins the processes that torchrun started with this one, and waits for all of them.

    Raises:
        RuntimeError: the other ranks cannot be reached.
    """
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(dist.get_node_local_rank() % torch.cuda.device_count())
    dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())
