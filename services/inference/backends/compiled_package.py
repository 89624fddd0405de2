"""What AOTInductor compiled (`aoti`), through torch, on the CPU. It is native code: local stores.

Rules kept here:
- only checked bytes reach the loader, which wants a file: they are written to a folder that only
  this user can enter, and which is gone once the package is loaded. (torch unpacks the library
  into a folder of its own, of mode 0700 in /tmp, which goes when the package is closed; a process
  that is killed leaves it there.)
- a package checks neither types nor shapes of its inputs: whoever calls it has.

That the processor and torch are those it was compiled for is checked in `artifact_fit.py`.

Source: https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html
"""

import tempfile
from pathlib import Path

import torch._inductor

from model_store.signature import Signature
from services.inference.backends.torch_module import Module, TorchModuleBackend


class CompiledPackageBackend(TorchModuleBackend):
    """One package, called with the signature's inputs in order.

    Args:
        data: the file, which holds native code.
        signature: names and order of inputs and outputs.
        threads: of torch, in the whole process; the package uses as many at most.
    """

    platform = "pytorch_aotinductor"

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
            path = Path(folder) / "package.pt2"
            path.write_bytes(data)
            module = load_package(str(path))
        super().__init__(module, signature, threads)


def load_package(path: str) -> Module:
    """Loads a package; the file is of no more use afterwards."""
    module: Module = torch._inductor.aoti_load_package(path)
    return module
