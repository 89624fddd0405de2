"""TorchScript models through torch, on the CPU. Loading one runs its code: local stores only.

Rules kept here: an input's memory is new for every batch, because a module may return its input;
torch has one thread count for the whole process, so the instance opened last decides it for all
(an isolated instance has a process, and so a count, of its own).
"""

import io
import warnings
from collections.abc import Mapping, Sequence

import torch

from model_store.signature import Signature
from model_store.tensors import Array
from services.inference.backends.backend import Backend


class TorchScriptBackend(Backend):
    """One scripted or traced module, called with the signature's inputs in order."""

    platform = "pytorch_torchscript"

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        torch.set_num_threads(threads)
        self._module = load_module(data, "cpu")
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        arrays = (inputs[name] for name in self._inputs)
        # Request bytes are read-only and torch wants memory it may write to.
        tensors = [torch.from_numpy(a if a.flags.writeable else a.copy()) for a in arrays]
        with torch.inference_mode():
            values = as_tensors(self._module(*tensors))
        return {n: v.numpy() for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the module."""
        del self._module


def load_module(data: bytes, device: str) -> torch.jit.ScriptModule:
    """Loads a module for inference.

    Args:
        data: the file, which may hold code.
        device: where its weights go, in torch's words.
    """
    with warnings.catch_warnings():
        # torch deprecates TorchScript at every call; the operator was told at training.
        warnings.simplefilter("ignore", DeprecationWarning)
        module: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
            io.BytesIO(data), map_location=device
        )
    return module.eval()


def as_tensors(result: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A module's result as a list, one tensor an output."""
    return [result] if isinstance(result, torch.Tensor) else list(result)
