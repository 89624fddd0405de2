"""TorchScript models through torch, on the CPU. Loading one runs its code: local stores only."""

import io
import warnings

import torch

from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torch_module import TorchModuleBackend
from services.inference.backends.verified_artifact import VerifiedArtifact


class TorchScriptBackend(TorchModuleBackend):
    """One scripted or traced module, called with the signature's inputs in order."""

    platform = "pytorch_torchscript"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        super().__init__(load_module(artifact.data, "cpu"), artifact.signature, options.threads)


def load_module(data: bytes, device: str) -> torch.jit.ScriptModule:
    """Loads a module for inference.

    Args:
        data: contents of the file, which may contain code.
        device: device of its weights, in torch's notation.
    """
    with warnings.catch_warnings():
        # torch deprecates TorchScript at every call; training has already warned the user.
        warnings.simplefilter("ignore", DeprecationWarning)
        module: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
            io.BytesIO(data), map_location=device
        )
    return module.eval()
