"""Kinds of artifact as this server runs them: one record for each kind.

To add a kind: its record here, its backend beside this file, and its records in
`model_store/artifact_kinds.py` and, if training makes it, `training/recipe/kinds/`.

A backend is named by its module, which is imported, with its runtime, when first needed. It is
called with a `VerifiedArtifact` and `OpenOptions`, and returns an open `Backend`.
"""

import functools
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass

from services.inference.backends.backend import Backend
from services.inference.backends.device import DeviceKind
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact

_HERE = "services.inference.backends"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedKind:
    """Runtime and backends of one kind."""

    package: str
    """Module of the runtime."""
    extra: str
    """Extra that installs it."""
    distributions: tuple[str, ...]
    """Packages that decide an artifact's outputs and speed, by their names on PyPI."""
    backends: Mapping[DeviceKind, str]
    """Backend on each kind of device that it runs on, as `module:Name`."""
    takes_texts: tuple[DeviceKind, ...] = ()
    """Kinds of device on which its backends take and give BYTES."""
    takes_optional: bool = False
    """True if its backends run without an optional input."""
    is_native: bool = False
    """True if a file runs only on processors like the one it was compiled on, and only with the
    same release of torch."""

    def open(self, artifact: VerifiedArtifact, options: OpenOptions) -> Backend:
        """Opens an artifact of this kind; see `open_backend`."""
        backend: Backend = pkgutil.resolve_name(self.backends[options.device.kind])(
            artifact, options
        )
        return backend


_TORCH_KIND = functools.partial(
    ServedKind, package="torch", extra="train", distributions=("torch", "torchao")
)

SERVED_KINDS: dict[str, ServedKind] = {
    "onnx": ServedKind(
        package="onnxruntime",
        extra="serve",
        distributions=("onnxruntime", "onnxruntime-gpu", "tensorrt"),
        backends={
            "cpu": f"{_HERE}.onnx_runtime:open_session",
            "cuda": f"{_HERE}.gpu.cuda_onnx:CudaOnnxBackend",
        },
        takes_texts=("cpu",),
        takes_optional=True,
    ),
    "openvino": ServedKind(
        package="openvino",
        extra="openvino",
        distributions=("openvino",),
        backends={"cpu": f"{_HERE}.openvino_ir:OpenVinoBackend"},
    ),
    "pt2": _TORCH_KIND(backends={"cpu": f"{_HERE}.exported_program:ExportedProgramBackend"}),
    "aoti": _TORCH_KIND(
        backends={"cpu": f"{_HERE}.compiled_package:CompiledPackageBackend"},
        is_native=True,
    ),
    "torchscript": _TORCH_KIND(
        backends={
            "cpu": f"{_HERE}.torchscript:TorchScriptBackend",
            "cuda": f"{_HERE}.gpu.cuda_torch:CudaTorchBackend",
        },
        takes_optional=True,
    ),
    "python": ServedKind(
        package="numpy",
        extra="serve",
        distributions=("numpy", "onnxruntime", "onnxruntime-gpu"),
        backends={
            "cpu": f"{_HERE}.python_model:PythonModelBackend",
            "cuda": f"{_HERE}.python_model:PythonModelBackend",
        },
        takes_texts=("cpu", "cuda"),
        takes_optional=True,
    ),
}


def runtime_distributions() -> list[str]:
    """Returns the `distributions` of all kinds, in order and once each."""
    return sorted({name for kind in SERVED_KINDS.values() for name in kind.distributions})
