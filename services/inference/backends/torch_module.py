"""What all torch backends on the CPU have in common: a module, called with tensors in order.

Rules kept here: an input's memory is new for every batch, because a module may return its input;
torch has one thread count for the whole process, so the instance opened last decides it for all
(an isolated instance has a process, and so a count, of its own).
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from model_store.signature import Signature
from model_store.tensors import Array
from services.inference.backends.backend import Backend

Module = Callable[..., torch.Tensor | Sequence[torch.Tensor]]


class TorchModuleBackend(Backend):
    """One module, called with the signature's inputs in order.

    Args:
        module: takes a tensor an input, [rows, ...], and gives a tensor an output.
        signature: names and order of both.
        threads: of torch, in the whole process.
    """

    def __init__(self, module: Module, signature: Signature, threads: int) -> None:
        torch.set_num_threads(threads)
        self._module = module
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        arrays = (inputs[name] for name in self._inputs)
        # Request bytes are read-only and torch wants memory it may write to; compiled packages read
        # past gaps as if there were none.
        tensors = [
            torch.from_numpy(a if a.flags.writeable and a.flags.c_contiguous else a.copy())
            for a in arrays
        ]
        with torch.inference_mode():
            values = as_tensors(self._module(*tensors))
        return {n: v.numpy() for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the module."""
        del self._module


def as_tensors(result: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A module's result as a list, one tensor an output."""
    return [result] if isinstance(result, torch.Tensor) else list(result)
