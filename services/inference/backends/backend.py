"""What a backend is, and which one opens an artifact."""

from collections.abc import Mapping
from typing import Protocol

from model_store.manifest import Artifact
from model_store.signature import Signature
from model_store.tensors import Array


class Backend(Protocol):
    """A loaded artifact. One worker thread uses it at a time."""

    platform: str
    """The protocol's platform string, `<project>_<format>`."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch.

        Args:
            inputs: every input of the signature, [rows, ...].

        Returns:
            Every output of the signature, [rows, ...].
        """

    def close(self) -> None:
        """Frees the model's memory."""


def open_backend(artifact: Artifact, data: bytes, signature: Signature, threads: int) -> Backend:
    """Opens an artifact whose bytes have been checked.

    Args:
        artifact: what the manifest says of it.
        data: the file's bytes, digest already checked.
        signature: the names and order of inputs and outputs.
        threads: CPU threads one run may use.

    Raises:
        Exception: whatever the runtime raises on a file it cannot open.
    """
    if artifact.kind == "torchscript":
        from services.inference.backends.torchscript import TorchScriptBackend

        return TorchScriptBackend(data, signature, threads)
    from services.inference.backends.onnx_runtime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(data, signature, threads)
