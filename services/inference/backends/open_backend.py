"""Which backend opens an artifact; it is imported, and its runtime with it, when first needed."""

from collections.abc import Sequence

from model_store.manifest import Artifact
from model_store.onnx_safety import check_onnx
from model_store.signature import Signature
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU, Device


def open_backend(
    artifact: Artifact,
    data: bytes,
    signature: Signature,
    threads: int,
    device: Device = CPU,
    preferred_batch_sizes: Sequence[int] = (),
) -> Backend:
    """Opens an artifact whose bytes have been checked.

    Args:
        artifact: what the manifest says of it.
        data: the file's bytes, digest already checked.
        signature: the names and order of inputs and outputs.
        threads: CPU threads one run may use.
        device: where it runs.
        preferred_batch_sizes: those worth preparing for, where a runtime can.

    Raises:
        UnsafeOnnxError: an ONNX file asks for more than its own bytes.
        DeviceError: the device is not there, or its runtime is not installed.
        Exception: whatever the runtime raises on a file it cannot open.
    """
    if artifact.kind == "onnx":
        check_onnx(data, artifact.file.file)
    if artifact.kind == "torchscript":
        if device.kind == "cuda":
            from services.inference.backends.cuda_torch import CudaTorchBackend

            return CudaTorchBackend(data, signature, device, preferred_batch_sizes)
        from services.inference.backends.torchscript import TorchScriptBackend

        return TorchScriptBackend(data, signature, threads)
    if device.kind == "cuda":
        from services.inference.backends.cuda_onnx import CudaOnnxBackend

        return CudaOnnxBackend(data, signature, device, threads)
    from services.inference.backends.onnx_runtime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(data, signature, threads)
