"""AOTInductor packages (`aoti`) through torch, on the CPU. They are native code: local stores only.

Rules:
- only verified bytes reach the loader, which requires a file: they are written to a folder that
  only this user can enter, and that is deleted once the package is loaded. (torch unpacks the
  library into its own folder, of mode 0700 in /tmp, which is deleted when the package is closed; a
  process that is killed leaves it there.)
- a package checks neither types nor shapes of its inputs: its caller has.

`artifact_fit.py` checks that the processor and torch are those that it was compiled for.

Source: https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html
"""

import tempfile
from pathlib import Path

import torch._inductor

from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torch_module import Module, TorchModuleBackend
from services.inference.backends.verified_artifact import VerifiedArtifact


class CompiledPackageBackend(TorchModuleBackend):
    """One package, called with the signature's inputs in order.

    Args:
        artifact: the package, which contains native code.
        options: torch's thread count, for the whole process; the package uses at most as many.
    """

    platform = "pytorch_aotinductor"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
            path = Path(folder) / "package.pt2"
            path.write_bytes(artifact.data)
            module = load_package(str(path))
        super().__init__(module, artifact.signature, options.threads)


def load_package(path: str) -> Module:
    """Loads a package; the file is not needed afterwards."""
    module: Module = torch._inductor.aoti_load_package(path)
    return module
