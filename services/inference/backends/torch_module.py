"""Common base of all torch backends on the CPU: a module that is called with tensors in order.

Rules: every batch allocates new memory for its inputs, because a module may return its input;
torch has one thread count for the whole process, so the instance that was opened last sets it for
all (an isolated instance has its own process, and so its own count).
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from services.inference.backends.backend import Backend

Result = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
Module = Callable[..., Result]


class TorchModuleBackend(Backend):
    """One module, called with the signature's inputs in order.

    Args:
        module: callable that takes one tensor per input, [rows, ...], and returns one per output.
        signature: names and order of inputs and outputs.
        threads: torch's thread count, for the whole process.
    """

    def __init__(self, module: Module, signature: Signature, threads: int) -> None:
        torch.set_num_threads(threads)
        self._module = module
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        arrays = (inputs.get(name) for name in self._inputs)
        # Copies read-only request bytes, because torch requires writable memory, and strided
        # arrays, because compiled packages ignore strides.
        tensors = [
            None  # an optional input that the requests omit
            if a is None
            else torch.from_numpy(a if a.flags.writeable and a.flags.c_contiguous else a.copy())
            for a in arrays
        ]
        with torch.inference_mode():
            values = as_tensors(self._module(*tensors), self._outputs)
        return {n: v.numpy() for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the module."""
        del self._module


def as_tensors(result: Result, names: Sequence[str]) -> list[torch.Tensor]:
    """Returns a module's result as a list, one tensor per output; a dictionary's by their names."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [result[n] for n in names] if isinstance(result, Mapping) else list(result)
