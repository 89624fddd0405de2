"""Batch norms that normalise over the rows of all ranks, as those of one process do.

In: a model whose batch norms each see a share of every batch. Out: the same model, whose batch
norms compute and learn the statistics of the whole batch. `torch.nn.SyncBatchNorm` needs a GPU, and
counts a row twice that a rank without a row of its own runs.

Rules: layers keep their types, so a checkpoint has plain batch norms; only training sends messages,
so a rank may run the model alone without gradients; a row that does not count is in no mean. Each
layer exchanges one message in the forward pass, and one in the backward pass.

Shapes: N rows of this rank, C channels, W ranks.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.distributed.replica import Replica
from training.errors import RecipeError

BatchNorm = nn.modules.batchnorm._BatchNorm


@contextlib.contextmanager
def batch_norms_shared(model: nn.Module, wanted: bool, replica: Replica) -> Iterator[None]:
    """Lets batch norms in training mode use the rows of all ranks, within the block.

    Args:
        model: the model of this rank.
        wanted: True if the recipe asks for it.
        replica: knows if this rank's rows count.

    Raises:
        RecipeError: the model has no batch norm.
    """
    if not wanted:
        yield
        return
    norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    if not norms:
        raise RecipeError("train.sync_batch_norm is set, and the model has no batch norm; drop it")
    if replica.ranks.world == 1:
        norms = []
    try:
        for layer in norms:
            # It imports torch's compiler, which takes a second: not when this module is imported.
            shared = torch.compiler.disable(_over_all_ranks)  # type: ignore[no-untyped-call]
            layer.forward = partial(shared, layer, layer.forward, replica)  # type: ignore[method-assign]
        yield
    finally:
        for layer in norms:
            layer.__dict__.pop("forward", None)


def _over_all_ranks(
    layer: BatchNorm, alone: Callable[[Tensor], Tensor], replica: Replica, x: Tensor
) -> Tensor:
    """Runs the layer's forward pass, [N, C, ...] to the same shape."""
    if not (layer.training and torch.is_grad_enabled()):
        return alone(x)
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    normal, mean, variance, number = _Normalised.apply(x, replica.counts, layer.eps)  # type: ignore[no-untyped-call]
    if layer.track_running_stats:
        _follow(layer, mean, variance * (number / (number - 1)))
    if layer.affine:
        shape = (1, -1, *[1] * (x.ndim - 2))
        normal = normal * layer.weight.view(shape) + layer.bias.view(shape)
    return normal.to(x.dtype)  # type: ignore[no-any-return]


@torch.no_grad()
def _follow(layer: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Updates the running statistics, as `torch.nn.BatchNorm1d` does."""
    assert layer.running_mean is not None, "it is tracked"
    assert layer.running_var is not None, "it is tracked"
    share = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if share is None:
            share = 1.0 / float(layer.num_batches_tracked)
    for kept, new in ((layer.running_mean, mean), (layer.running_var, variance)):
        kept.lerp_(new.to(kept.dtype), share or 0.0)


class _Normalised(torch.autograd.Function):
    """(x - mean) / deviation by channel, over the rows of all ranks (Ioffe and Szegedy, 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: bool, eps: float) -> tuple[Tensor, ...]:
        """Maps [N, C, ...] to the same in FP32, mean [C], variance [C], and the count of values."""
        axes, shape = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        x = x.float()
        mean = x.mean(axes)
        squares = (x - mean.view(shape)).square().sum(axes)
        own = mean.new_full((1,), x.numel() / x.shape[1] if counts else 0)
        sent = torch.cat([own, mean, squares]).double()
        every = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        dist.all_gather(every, sent)
        told = torch.stack(every)  # [W, 1 + 2 * C]
        numbers, (means, sums) = told[:, :1], told[:, 1:].chunk(2, dim=1)
        number = numbers.sum()
        if number <= 1:
            raise ValueError(
                "a batch norm needs more than 1 number of each channel in training, and a batch of "
                "all processes has 1; take another data.batch_size"
            )
        mean = (numbers * means).sum(0) / number
        within = torch.where(numbers > 0, sums, 0.0).sum(0)
        variance = (within + (numbers * (means - mean).square()).sum(0)) / number
        scale = torch.rsqrt(variance + eps).float().view(shape)
        normal = (x - mean.float().view(shape)) * scale
        ctx.save_for_backward(normal, scale, number)
        ctx.counts = counts
        ctx.mark_non_differentiable(mean, variance, number)
        return normal, mean, variance, number

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *others: Tensor) -> Any:
        """Sums the gradients of the mean and the deviation over all ranks."""
        normal, scale, number = ctx.saved_tensors
        axes = [0, *range(2, normal.ndim)]
        sums = torch.stack([gradient.sum(axes), (gradient * normal).sum(axes)])  # [2, C]
        dist.all_reduce(sums)
        if not ctx.counts:  # the rows were in no mean
            return gradient * scale, None, None
        first, second = (sums / number.float()).view(2, *scale.shape)
        return (gradient - first - normal * second) * scale, None, None
