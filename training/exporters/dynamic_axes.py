"""Which axes of a model's inputs may have any size, as exporters want to be told."""

from typing import Any

import torch

from model_store.signature import Signature


def dynamic_axes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """For each input, its axes of any size: the batch, and those that padding names.

    Args:
        signature: of the model. The batch goes from 1 to its largest, the length from 1 to the
            last bucket.
    """
    batch = torch.export.Dim("batch", min=1, max=max(signature.max_batch_size, 2))
    padding = signature.padding
    if padding is None:
        return tuple({0: batch} for _ in signature.inputs)
    length = torch.export.Dim("length", min=1, max=padding.buckets[-1])
    axes = [padding.axis_of(spec.name) for spec in signature.inputs]
    return tuple({0: batch} if axis is None else {0: batch, axis: length} for axis in axes)
