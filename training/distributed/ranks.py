"""The processes that train one model together, as each of them sees the others.

In: what torchrun tells by its environment. Out: this process's place among them, and what all of
them know together. Alone, nothing is sent and every value stays as it is, bit for bit.

Rules kept here: what passes between ranks outside of gradients is small and lies in the CPU's
memory, so that it never waits for a GPU; rank 0 decides, and alone writes.
"""

import random
from datetime import timedelta
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

Value = TypeVar("Value")

PATIENCE = timedelta(hours=1)
"""How long ranks wait for one that is slow, as while rank 0 writes a checkpoint. One that dies is
noticed at once."""


class Ranks:
    """This process among those that train together.

    Args:
        rank: its place, from 0.
        world: how many they are.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @property
    def is_first(self) -> bool:
        """Whether this one decides and writes."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, in their order; all of them have to call it."""
        if self.world == 1:
            return [value]
        found: list[Value | None] = [None] * self.world
        dist.all_gather_object(found, value)
        return found  # type: ignore[return-value]

    def decided(self, value: Value) -> Value:
        """Rank 0's value."""
        return self.gather(value)[0]

    def sums(self, *values: float) -> list[float]:
        """Each value summed over all ranks."""
        if self.world == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed)
        return summed.tolist()

    def any_of(self, value: bool) -> bool:
        """Whether it is true of any rank."""
        return value if self.world == 1 else self.sums(float(value))[0] > 0

    def share(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], bool]:
        """The rows of a batch that this rank takes: every `world`-th from its own place on.

        Returns:
            They; and False if there are none left for it. It then takes the batch's first row, for
            all ranks must run the model, and the row weighs nothing.
        """
        mine = rows[self.rank :: self.world]
        return (mine, True) if len(mine) else (rows[:1], False)

    def seed(self, seed: int, epoch: int) -> None:
        """Gives every rank but the first random numbers of its own.

        Args:
            seed: of the run.
            epoch: that comes next.
        """
        if self.is_first:
            return
        own = np.random.SeedSequence((seed, self.rank, epoch)).generate_state(3)
        random.seed(int(own[0]))
        np.random.seed(int(own[1]))
        torch.manual_seed(int(own[2]))

    def leave(self) -> None:
        """Parts with the others, once all of them have come this far."""
        if self.world > 1:
            self.gather(None)
            dist.destroy_process_group()


ALONE = Ranks()


def started_by_torchrun() -> bool:
    """Whether this process is one of those that torchrun has started."""
    return dist.is_torchelastic_launched()


def join_ranks() -> Ranks:
    """Joins the processes that torchrun has started with this one, and waits until all are there.

    Raises:
        RuntimeError: the others cannot be reached.
    """
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(dist.get_node_local_rank() % torch.cuda.device_count())
    dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())
