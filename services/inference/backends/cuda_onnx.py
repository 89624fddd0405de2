"""ONNX models through ONNX Runtime, on a GPU: by CUDA's kernels, or TensorRT's engines.

Rules kept here: inputs are copied to the GPU once, from page-locked memory where the caller
filled a `buffer`; outputs stay on the GPU until the run has ended and are copied once; no model
falls back to the CPU unnoticed; single precision is computed in full by CUDA, as the artifact was
verified, not in TF32; where TensorRT cannot be had, CUDA runs the model, and the log says why.

Source: https://onnxruntime.ai/docs/api/python/api_summary.html#data-on-device and
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
"""

import contextlib
import importlib
import logging
from collections.abc import Mapping

import numpy as np
import onnxruntime

from model_store.manifest import Precision
from model_store.signature import Signature
from model_store.tensors import Array
from services.errors import DeviceError
from services.inference.backends.backend import Backend
from services.inference.backends.backend_options import BackendOptions
from services.inference.backends.device import Device
from services.inference.backends.device_faults import device_error, is_device_fault
from services.inference.backends.onnx_providers import (
    CUDA,
    TENSORRT,
    session_providers,
    tensorrt_options,
)
from services.inference.backends.onnx_runtime import session_options

logger = logging.getLogger("flambeau.cuda")

_MEMORY = "cuda"


class CudaOnnxBackend(Backend):
    """One session on one GPU, which gives it a stream of its own. The file is data.

    Args:
        data: the file.
        signature: names of inputs and outputs, and the sizes TensorRT builds engines for.
        options: which GPU; how many CPU threads run what is left to the CPU; whether TensorRT
            comes before CUDA, and which batch sizes it tunes its engines for.
        precision: of the artifact.
        digest: of the file, which its engines are cached under.

    Raises:
        DeviceError: this ONNX Runtime has no CUDA, or CUDA did not start.
    """

    platform = "onnx_onnxv1"

    def __init__(
        self,
        data: bytes,
        signature: Signature,
        options: BackendOptions,
        precision: Precision = "fp32",
        digest: str = "",
    ) -> None:
        device, threads, how = options.device, options.threads, options.onnx_on_gpu
        _check_provider(device, onnxruntime.get_available_providers())
        # Only here, because it imports torch.
        from services.inference.backends.cuda_device import check_gpu, pinned_array

        check_gpu(device)
        self._pinned_array = pinned_array
        # CUDA's libraries may lie in wheels beside ONNX Runtime, where the loader does not look.
        onnxruntime.preload_dlls()
        session = None
        if "tensorrt" in how.providers:
            try:
                sizes = options.preferred_batch_sizes
                tensorrt = tensorrt_options(how, device.index, signature, precision, sizes, digest)
                session = _tensorrt_session(data, threads, device, tensorrt)
            except Exception as error:  # whatever TensorRT raises on a graph it does not take
                reason = str(error) or repr(error)
                logger.warning("no TensorRT; CUDA runs the model", extra={"reason": reason})
        if session is None:
            session = _session(data, threads, device, None)
        _check_provider(device, session.get_providers())
        self._session = session
        self._run_options = onnxruntime.RunOptions()
        # "No CUDA graph" is the default, but Python asks for the entry at every run, and that it
        # is missing costs it an exception and 50 µs.
        self._run_options.add_run_config_entry("gpu_graph_id", "-1")
        self._index = device.index
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]

    def buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Page-locked memory for one input; see `Backend.buffer`."""
        return self._pinned_array(shape, dtype)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        try:
            # A binding keeps the outputs of its last run and their shapes, so each run gets one.
            binding = self._session.io_binding()
            for name in self._inputs:
                binding.bind_cpu_input(name, np.ascontiguousarray(inputs[name]))
            for name in self._outputs:
                binding.bind_output(name, _MEMORY, self._index)
            self._session.run_with_iobinding(binding, self._run_options)
            values = binding.copy_outputs_to_cpu()
        except Exception as error:
            if is_device_fault(error):
                raise device_error(error) from error
            raise
        return dict(zip(self._outputs, values, strict=True))

    def close(self) -> None:
        """Frees the session and its memory on the GPU."""
        del self._session

    def kill(self) -> None:
        """Makes the present run, and every later one, raise at its next operator."""
        self._run_options.terminate = True


def _tensorrt_session(
    data: bytes, threads: int, device: Device, options: dict[str, str]
) -> onnxruntime.InferenceSession:
    if TENSORRT not in onnxruntime.get_available_providers():
        raise DeviceError(
            "this ONNX Runtime has no TensorRT; install onnxruntime-gpu in onnxruntime's place, "
            "and tensorrt"
        )
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorrt")  # finds its libraries where the loader does not look
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
