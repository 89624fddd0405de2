"""A model that computes in 16 bits, with the inputs and outputs of the FP32 one."""

import copy

import torch
from torch import Tensor, nn


class NarrowFloats(nn.Module):
    """A copy of a model in a narrower floating point type.

    Args:
        model: model in FP32.
        dtype: compute type: `torch.bfloat16` or `torch.float16`.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._model, self._dtype = copy.deepcopy(model).to(dtype), dtype

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Maps the model's inputs in order, [N, ...], to its outputs; FP32 ones stay FP32."""
        narrow = [x.to(self._dtype) if x.dtype == torch.float32 else x for x in inputs]
        found = self._model(*narrow)
        if isinstance(found, Tensor):
            return self._wide(found)
        return tuple(self._wide(tensor) for tensor in found)

    def _wide(self, tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype == self._dtype else tensor
