"""One rank's copy of a model, or its shard, and the whole model that is made of the shards.

In: a model that is equal on every rank. Out: a module that runs and trains with those of the other
ranks; the model with all of its weights, whenever a checkpoint is due.

Sources: `DistributedDataParallel`, and `fully_shard` (FSDP2) of torch 2.13.

Rules: torch averages gradients over the ranks, so a loss carries its weight among those of the
other ranks (`Objective.of`); weights, gradients and sums stay FP32, and autocast sets the layers'
precision, as in one process; a checkpoint of shards is one of the whole model, and the other way
round.
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
from training.process.compilation import compiled
from training.recipe.parts.train_parts import TrainPart

_NOTHING = contextlib.nullcontext()
CONTAINERS = (nn.ModuleList, nn.Sequential)
"""Modules whose members are the blocks of a network."""


class Replica:
    """The model of one rank.

    Args:
        model: the model, equal on all ranks, to the bit.
        part: the recipe's part.
        ranks: processes that train it together.

    Raises:
        RecipeError: several processes were started for a recipe of one, or the model has nothing
            to shard.
    """

    def __init__(self, model: nn.Module, part: TrainPart, ranks: Ranks) -> None:
        self.ranks = ranks
        self._whole = model
        self.module = model
        """Has the weights that the optimizer updates, under the model's names."""
        self.run: Callable[..., Any] = model
        """Runs the module in training."""
        self.counts = True
        """True if its current rows are this rank's own, not another rank's without weight."""
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
        """True if this rank has only a shard of the weights."""
        return self.module is not self._whole

    def begin(self) -> None:
        """Prepares the module once the trainable weights are known, before the first step."""
        if self._compiles:
            self.run = compiled(self.module)
        if self.ranks.world > 1 and not self.is_sharded:
            # Must not wait for weights that a step does not use, or that are frozen for now.
            self.run = DistributedDataParallel(
                self.run, forward_sync_buffers=False, find_unused_parameters=True
            )

    def held_back(
        self, *, last: bool, counts: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Returns the context of one batch's passes: only the last of a window sends gradients.

        Args:
            last: True for the last batch.
            counts: True if the batch has weight.
        """
        self.counts = counts
        if isinstance(self.run, DistributedDataParallel) and not last:
            return self.run.no_sync()
        if self.is_sharded:
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
        return _NOTHING

    def share_buffers(self, model: nn.Module) -> None:
        """Copies rank 0's buffers, such as statistics of norms, to a model."""
        if self.ranks.world > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def whole(self, model: nn.Module) -> nn.Module:
        """Returns the model with all of its weights; all ranks must call it.

        Args:
            model: the model to save: `module` or, without shards, an average of it.
        """
        if not self.is_sharded:
            return model
        self._whole.load_state_dict(whole_tensors(model.state_dict()))
        return self._whole

    def plain(self, model: nn.Module) -> nn.Module:
        """Returns the module that a checkpoint is loaded into, before its weights are sharded."""
        return self._whole if model is self.module else model

    def spread(self) -> None:
        """Sets the ranks' shards from the whole model's weights."""
        if self.is_sharded:
            own = self._whole.state_dict()
            with torch.no_grad():
                for name, tensor in self.module.state_dict().items():
                    tensor.copy_(_like(own[name], tensor))


class WholeOptimizer:
    """An optimizer, saved as in one process.

    Args:
        optimizer: the optimizer of this rank's module.
        state: its whole state; gathered before, since that needs all ranks.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None = None
    ) -> None:
        self._optimizer = optimizer
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Returns the gathered state."""
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads this rank's shard of a whole state, or a state that was never sharded."""
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
    """Returns the same mappings and lists with every sharded tensor whole, in CPU memory.

    All ranks must call it with the same structure.
    """
    if isinstance(values, Mapping):
        return {key: whole_tensors(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(whole_tensors(value) for value in values)
    return values.full_tensor().cpu() if hasattr(values, "full_tensor") else values


def _like(value: Tensor, target: Tensor) -> Tensor:
    """Returns this rank's shard of a whole tensor, if the target is sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(target, DTensor):
        return value
    mesh, placements = target.device_mesh, target.placements
    return distribute_tensor(value.to(target.device), mesh, placements, src_data_rank=None)


def _sharded(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Returns a copy of the model with a shard of each weight."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    twin = copy.deepcopy(model)
    first = next(twin.parameters(), None)
    if first is None:
        raise RecipeError("the model has no parameters, so train.parallel fsdp has none to shard")
    mesh = init_device_mesh(first.device.type, (ranks.world,))
    # Reshards right after the forward pass, so that the weights are sharded between steps.
    for part in [*blocks(twin), twin]:
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    return twin


def blocks(model: nn.Module) -> list[nn.Module]:
    """Returns parts of a network whose weights are gathered together: members of containers.

    Modules in a block belong to it; blocks that share a weight with another module are left out.
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
