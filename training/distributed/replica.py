"""One rank's copy of a model, or its share of it, and what makes a whole of the shares again.

In: a model, which every rank has made alike. Out: a module that runs and learns with those of the
other ranks; the model with all of its weights, whenever a checkpoint is due.

Sources: `DistributedDataParallel`, and `fully_shard` (FSDP2) of torch 2.13.

Rules kept here: torch averages gradients over the ranks, so whoever makes a loss says what it
weighs beside those of the others (`Objective.of`); weights, gradients and sums stay FP32, and the
layers' precision is autocast's, as in one process; a checkpoint of shares is that of the whole
model, and the other way round.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.distributed.ranks import Ranks
from training.errors import RecipeError
from training.loop.compilation import compiled
from training.recipe.recipe import TrainPart

_NOTHING = contextlib.nullcontext()
CONTAINERS = (nn.ModuleList, nn.Sequential)
"""Modules whose members are the blocks of a network."""


class Replica:
    """What one rank trains.

    Args:
        model: the same on all ranks, to the bit.
        part: the recipe's.
        ranks: who trains it together.

    Raises:
        RecipeError: processes were started for a recipe that wants none, or the model has nothing
            to share.
    """

    def __init__(self, model: nn.Module, part: TrainPart, ranks: Ranks) -> None:
        self.ranks = ranks
        self._whole = model
        self.module = model
        """Where the weights are that the optimizer moves, under the names that the model has."""
        self.run: Callable[..., Any] = model
        """Runs it in training."""
        self.counts = True
        """Whether the rows it runs at present are this rank's own, and not another's run along."""
        self._compiles = part.compile
        if ranks.world == 1:
            return
        if part.parallel == "none":
            raise RecipeError(
                f"{ranks.world} processes were started, and train.parallel is none; take ddp or "
                "fsdp, or start one"
            )
        if part.parallel == "fsdp":
            self.module = self.run = _sharded(model, ranks)

    @property
    def is_sharded(self) -> bool:
        """Whether this rank has only a share of the weights."""
        return self.module is not self._whole

    def begin(self) -> None:
        """Called when it is known which weights learn, before the first step."""
        if self._compiles:
            self.run = compiled(self.module)
        if self.ranks.world > 1 and not self.is_sharded:
            # What a step does not use, or what is frozen for now, must not be waited for.
            self.run = DistributedDataParallel(
                self.run, forward_sync_buffers=False, find_unused_parameters=True
            )

    def held_back(
        self, *, last: bool, counts: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Around the forward and backward of one batch: only the last of a window is sent.

        Args:
            last: whether it is.
            counts: whether the batch weighs anything.
        """
        self.counts = counts
        if isinstance(self.run, DistributedDataParallel) and not last:
            return self.run.no_sync()
        if self.is_sharded:
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
        return _NOTHING

    def share_buffers(self, model: nn.Module) -> None:
        """Gives a model's statistics of norms, and other buffers, the values of rank 0."""
        if self.ranks.world > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def whole(self, model: nn.Module) -> nn.Module:
        """The model with all of its weights; all ranks have to call it.

        Args:
            model: what is to be saved: `module`, or where nothing is shared an average of it.
        """
        if not self.is_sharded:
            return model
        self._whole.load_state_dict(whole_tensors(model.state_dict()))
        return self._whole

    def plain(self, model: nn.Module) -> nn.Module:
        """Where the whole weights of a checkpoint are loaded to, before they are spread."""
        return self._whole if model is self.module else model

    def spread(self) -> None:
        """Gives the ranks their shares of the whole model's weights."""
        if self.is_sharded:
            own = self._whole.state_dict()
            with torch.no_grad():
                for name, tensor in self.module.state_dict().items():
                    tensor.copy_(_like(own[name], tensor))


class WholeOptimizer:
    """An optimizer, saved as it would be in one process.

    Args:
        optimizer: of this rank's module.
        save: its state, whole; taken before, for it needs all ranks.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None = None
    ) -> None:
        self._optimizer = optimizer
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """What was gathered."""
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives this rank its share of a whole state, or of one that was never shared."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        shared = {
            place: {
                name: _like(value, parameters[place])
                if isinstance(value, Tensor) and value.shape == parameters[place].shape
                else value
                for name, value in kept.items()
            }
            for place, kept in state["state"].items()
        }
        self._optimizer.load_state_dict({**state, "state": shared})


def whole_tensors(values: Any) -> Any:
    """The same mappings and lists with every shared tensor whole, in the CPU's memory.

    All ranks have to call it with the same structure.
    """
    if isinstance(values, Mapping):
        return {key: whole_tensors(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(whole_tensors(value) for value in values)
    return values.full_tensor().cpu() if hasattr(values, "full_tensor") else values


def _like(value: Tensor, target: Tensor) -> Tensor:
    """A whole tensor as this rank's share, if the target is one."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(target, DTensor):
        return value
    mesh, placements = target.device_mesh, target.placements
    return distribute_tensor(value.to(target.device), mesh, placements, src_data_rank=None)


def _sharded(model: nn.Module, ranks: Ranks) -> nn.Module:
    """A twin of the model with a share of each weight."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    twin = copy.deepcopy(model)
    first = next(twin.parameters(), None)
    if first is None:
        raise RecipeError("the model has no parameters, so train.parallel fsdp has none to share")
    mesh = init_device_mesh(first.device.type, (ranks.world,))
    # Shares again right behind the forward pass, so that the weights are shares between steps.
    for part in [*blocks(twin), twin]:
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    return twin


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts of a network whose weights are gathered together: members of its containers.

    What lies in a block belongs to it, and weights that two blocks share to none.
    """
    found: dict[int, nn.Module] = {}

    def look(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, CONTAINERS):
                look(child)
            elif isinstance(module, CONTAINERS) and next(child.parameters(), None) is not None:
                found[id(child)] = child
            else:
                look(child)

    look(model)
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    inside = [{id(m) for m in block.modules()} for block in found.values()]
    return [
        block
        for block, within in zip(found.values(), inside, strict=True)
        if all(owners[id(p)] <= within for p in block.parameters())
    ]
