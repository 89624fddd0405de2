"""Opens an artifact in its backend, which is imported, with its runtime, when first needed."""

from model_store.manifest import CODE_KINDS, Artifact
from model_store.safety.archive_sizes import check_archive
from model_store.safety.onnx_safety import check_onnx
from model_store.signature import Signature
from services.inference.backends.artifact_fit import check_fit
from services.inference.backends.backend import Backend
from services.inference.backends.backend_options import BackendOptions
from services.inference.backends.python_step import PythonStepBackend, StepCode


def open_backend(
    artifact: Artifact,
    data: bytes,
    signature: Signature,
    options: BackendOptions,
    *,
    weights: bytes = b"",
    code: StepCode | None = None,
) -> Backend:
    """Opens an artifact whose bytes have been verified.

    Args:
        artifact: the artifact's entry in the manifest.
        data: bytes of the file, with a verified digest.
        signature: names and order of inputs and outputs.
        options: options of the backend.
        weights: bytes of the second file, verified as well, for kinds that have one.
        code: the version's Python step, which runs before the artifact.

    Raises:
        UnsafeOnnxError: an ONNX file refers to more than its own bytes.
        DeviceError: the device is missing, or its runtime is not installed.
        UnfitArtifactError: this machine cannot run it.
        Exception: any exception of the runtime for a file that it cannot open.
    """
    if code is not None:
        behind = code.signature_behind(signature)
        return PythonStepBackend(
            code, open_backend(artifact, data, behind, options, weights=weights)
        )
    check_fit(artifact, options.device)
    if artifact.kind == "onnx":
        check_onnx(data, artifact.file.file)
    elif artifact.kind in CODE_KINDS:
        check_archive(data, artifact.file.file)
    if options.device.kind == "cuda":
        return _open_on_gpu(artifact, data, signature, options)
    threads = options.threads
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
    artifact: Artifact, data: bytes, signature: Signature, options: BackendOptions
) -> Backend:
    if artifact.kind == "torchscript":
        from services.inference.backends.cuda_torch import CudaTorchBackend

        return CudaTorchBackend(data, signature, options)
    from services.inference.backends.cuda_onnx import CudaOnnxBackend

    return CudaOnnxBackend(data, signature, options, artifact.precision, artifact.file.sha256)
