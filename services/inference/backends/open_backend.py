"""Which backend opens an artifact; it is imported, and its runtime with it, when first needed."""

from collections.abc import Sequence

from model_store.manifest import Artifact
from model_store.onnx_safety import check_onnx
from model_store.signature import Signature
from services.inference.backends.artifact_fit import check_fit
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU, Device
from services.inference.backends.onnx_providers import OnnxOnGpu
from services.inference.backends.python_step import PythonStepBackend, StepCode


def open_backend(
    artifact: Artifact,
    data: bytes,
    signature: Signature,
    threads: int,
    device: Device = CPU,
    preferred_batch_sizes: Sequence[int] = (),
    weights: bytes = b"",
    code: StepCode | None = None,
    onnx_on_gpu: OnnxOnGpu | None = None,
) -> Backend:
    """Opens an artifact whose bytes have been checked.

    Args:
        artifact: what the manifest says of it.
        data: the file's bytes, digest already checked.
        signature: the names and order of inputs and outputs.
        threads: CPU threads one run may use.
        device: where it runs.
        preferred_batch_sizes: those worth preparing for, where a runtime can.
        weights: the bytes of the second file, checked as well, for kinds that have one.
        code: the version's Python step, which runs before the artifact.
        onnx_on_gpu: how a GPU runs ONNX artifacts; by CUDA alone unless told.

    Raises:
        UnsafeOnnxError: an ONNX file asks for more than its own bytes.
        DeviceError: the device is not there, or its runtime is not installed.
        UnfitArtifactError: this machine cannot run it.
        Exception: whatever the runtime raises on a file it cannot open.
    """
    if code is not None:
        behind = code.signature_behind(signature)
        sizes = preferred_batch_sizes
        opened = open_backend(artifact, data, behind, threads, device, sizes, weights)
        return PythonStepBackend(code, opened)
    check_fit(artifact, device)
    if artifact.kind == "onnx":
        check_onnx(data, artifact.file.file)
    if device.kind == "cuda":
        sizes = preferred_batch_sizes
        return _open_on_gpu(artifact, data, signature, threads, device, sizes, onnx_on_gpu)
    match artifact.kind:
        case "torchscript":
            from services.inference.backends.torchscript import TorchScriptBackend

            return TorchScriptBackend(data, signature, threads)
        case "pt2":
            from services.inference.backends.exported_program import ExportedProgramBackend

            return ExportedProgramBackend(data, signature, threads, artifact.precision)
        case "aoti":
            from services.inference.backends.compiled_package import CompiledPackageBackend

            return CompiledPackageBackend(data, signature, threads)
        case "openvino":
            from services.inference.backends.openvino_ir import OpenVinoBackend

            return OpenVinoBackend(data, weights, signature, threads, artifact.precision)
        case "onnx":
            from services.inference.backends.onnx_runtime import OnnxRuntimeBackend

            return OnnxRuntimeBackend(data, signature, threads)


def _open_on_gpu(
    artifact: Artifact,
    data: bytes,
    signature: Signature,
    threads: int,
    device: Device,
    preferred_batch_sizes: Sequence[int],
    onnx_on_gpu: OnnxOnGpu | None,
) -> Backend:
    if artifact.kind == "torchscript":
        from services.inference.backends.cuda_torch import CudaTorchBackend

        return CudaTorchBackend(data, signature, device, preferred_batch_sizes)
    from services.inference.backends.cuda_onnx import CudaOnnxBackend

    return CudaOnnxBackend(
        data,
        signature,
        device,
        threads,
        onnx_on_gpu,
        artifact.precision,
        preferred_batch_sizes,
        artifact.file.sha256,
    )
