"""ONNX models through ONNX Runtime, on a GPU: with CUDA's kernels, or TensorRT's engines.

Rules: inputs are copied to the GPU once, from page-locked memory if the caller filled a `buffer`;
outputs stay on the GPU until the run has ended and are copied once; no model falls back to the
CPU silently; CUDA computes single precision as FP32, as the artifact was verified, not as TF32;
if TensorRT is unavailable, CUDA runs the model, and the reason is logged.

Source: https://onnxruntime.ai/docs/api/python/api_summary.html#data-on-device and
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
"""

import contextlib
import copy
import importlib
import logging
from collections.abc import Mapping

import numpy as np
import onnxruntime

from flambeau.protocol.tensors import Array
from model_store.safety.onnx_safety import operators_of
from services.errors import DeviceError
from services.inference.backends.backend import Backend
from services.inference.backends.device import Device
from services.inference.backends.gpu.device_faults import device_error, is_device_fault
from services.inference.backends.onnx_providers import (
    CUDA,
    TENSORRT,
    session_providers,
    tensorrt_options,
)
from services.inference.backends.onnx_runtime import session_options
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact

logger = logging.getLogger("flambeau.cuda")

_MEMORY = "cuda"
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose"})
"""Each plans anew when the size of its batch changes: 18 ms a run for ten of them, if two sizes
alternate (docs/adr/0065). Two batches at once would differ in size, as one size is seldom full."""


class CudaOnnxBackend(Backend):
    """One session on one GPU, with its own stream. The file is data.

    Args:
        artifact: the graph; TensorRT builds engines for the sizes in its signature, and caches them
            under the digest of its file.
        options: the GPU; the number of CPU threads for operators that stay on the CPU; TensorRT's
            precedence over CUDA, and the batch sizes that it tunes its engines for.

    Raises:
        DeviceError: this ONNX Runtime has no CUDA, or CUDA did not start.
    """

    platform = "onnx_onnxv1"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        data, signature = artifact.data, artifact.signature
        device, threads, how = options.device, options.threads, options.onnx_on_gpu
        _check_provider(device, onnxruntime.get_available_providers())
        # Imported here, because it imports torch.
        from services.inference.backends.gpu.cuda_device import check_gpu, pinned_array

        check_gpu(device)
        self._pinned_array = pinned_array
        # CUDA's libraries may lie in wheels beside ONNX Runtime, which the loader does not search.
        onnxruntime.preload_dlls()
        session = None
        if "tensorrt" in how.providers:
            try:
                entry, sizes = artifact.entry, options.preferred_batch_sizes
                tensorrt = tensorrt_options(
                    how, device.index, signature, entry.precision, sizes, entry.file.sha256
                )
                session = _tensorrt_session(data, threads, device, tensorrt)
            except Exception as error:  # TensorRT may raise anything for an unsupported graph
                reason = str(error) or repr(error)
                logger.warning("no TensorRT; CUDA runs the model", extra={"reason": reason})
        if session is None:
            session = _session(data, threads, device, None)
        _check_provider(device, session.get_providers())
        self._session = session
        self._run_options = _run_options()
        keeps_plans = options.has_one_size or not operators_of(data) & _CONVOLUTIONS
        self._overlaps = keeps_plans and TENSORRT not in session.get_providers()
        self._index = device.index
        self._outputs = [spec.name for spec in signature.outputs]

    def buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Returns page-locked memory for one input; see `Backend.buffer`."""
        return self._pinned_array(shape, dtype)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        try:
            # A binding keeps the outputs and shapes of its last run, so each run has its own.
            binding = self._session.io_binding()
            for name, array in inputs.items():
                binding.bind_cpu_input(name, np.asarray(array, order="C"))
            for name in self._outputs:
                binding.bind_output(name, _MEMORY, self._index)
            self._session.run_with_iobinding(binding, self._run_options)
            values = binding.copy_outputs_to_cpu()
        except Exception as error:
            if is_device_fault(error):
                raise device_error(error) from error
            raise
        return dict(zip(self._outputs, values, strict=True))

    def twin(self) -> "CudaOnnxBackend | None":
        """Returns a backend with the same session, which takes runs of several threads."""
        if not self._overlaps:
            return None
        twin = copy.copy(self)
        twin.is_twin = True
        twin._run_options = _run_options()
        return twin

    def close(self) -> None:
        """Frees the session and its memory on the GPU."""
        del self._session

    def kill(self) -> None:
        """Makes the current run, and every later one, raise at its next operator."""
        self._run_options.terminate = True


def _run_options() -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    # "No CUDA graph" is the default, but the Python API reads the entry at every run, and a missing
    # one costs an exception and 50 µs.
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


def _tensorrt_session(
    data: bytes, threads: int, device: Device, options: dict[str, str]
) -> onnxruntime.InferenceSession:
    if TENSORRT not in onnxruntime.get_available_providers():
        raise DeviceError(
            "this ONNX Runtime has no TensorRT; install onnxruntime-gpu in onnxruntime's place, "
            "and tensorrt"
        )
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorrt")  # finds libraries that the loader does not search for
    session = _session(data, threads, device, options)
    if TENSORRT not in session.get_providers():
        raise DeviceError(
            "ONNX Runtime did not start TensorRT, whose libraries it did not find; install the "
            "package tensorrt in the version that onnxruntime-gpu names"
        )
    return session


def _session(
    data: bytes, threads: int, device: Device, tensorrt: dict[str, str] | None
) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        data,
        session_options(threads),
        providers=session_providers(device.index, tensorrt),
        enable_fallback=0,
    )


def _check_provider(device: Device, providers: list[str]) -> None:
    if CUDA not in providers:
        raise DeviceError(
            f"device {device} was asked for, and ONNX Runtime {onnxruntime.__version__} here "
            f"offers only {', '.join(providers)}; uninstall onnxruntime, install onnxruntime-gpu "
            "with the CUDA and cuDNN it names, or serve on device cpu"
        )
