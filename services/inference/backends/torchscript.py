"""TorchScript models through torch, on the CPU. Loading one runs its code: local stores only."""

import io
import warnings
from collections.abc import Mapping

import numpy as np
import torch

from model_store.signature import Signature
from model_store.tensors import Array


class TorchScriptBackend:
    """One scripted or traced module, called with the signature's inputs in order."""

    platform = "pytorch_torchscript"

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        torch.set_num_threads(threads)
        with warnings.catch_warnings():
            # torch deprecates TorchScript at every call; the operator was told at training.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._module = torch.jit.load(  # type: ignore[no-untyped-call]
                io.BytesIO(data), map_location="cpu"
            ).eval()
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        # Request bytes are read-only and torch wants memory it may write to.
        tensors = [torch.from_numpy(np.require(inputs[n], requirements="W")) for n in self._inputs]
        with torch.inference_mode():
            result = self._module(*tensors)
        values = [result] if isinstance(result, torch.Tensor) else list(result)
        return {n: v.numpy() for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the module."""
        del self._module
