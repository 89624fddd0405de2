"""ONNX models through ONNX Runtime, on a GPU.

Rules kept here: inputs are copied to the GPU once, from page-locked memory where the caller
filled a `buffer`; outputs stay on the GPU until the run has ended and are copied once; no model
falls back to the CPU unnoticed; single precision is computed in full, as the artifact was
verified, not in TF32.

Source: https://onnxruntime.ai/docs/api/python/api_summary.html#data-on-device and
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
"""

from collections.abc import Mapping

import numpy as np
import onnxruntime

from model_store.signature import Signature
from model_store.tensors import Array
from services.errors import DeviceError
from services.inference.backends.backend import Backend
from services.inference.backends.device import Device
from services.inference.backends.device_faults import device_error, is_device_fault
from services.inference.backends.onnx_runtime import session_options

_PROVIDER = "CUDAExecutionProvider"
_MEMORY = "cuda"


class CudaOnnxBackend(Backend):
    """One session on one GPU, which gives it a stream of its own. The file is data.

    Raises:
        DeviceError: this ONNX Runtime has no CUDA, or CUDA did not start.
    """

    platform = "onnx_onnxv1"

    def __init__(self, data: bytes, signature: Signature, device: Device, threads: int) -> None:
        _check_provider(device, onnxruntime.get_available_providers())
        # Only here, because it imports torch.
        from services.inference.backends.cuda_device import check_gpu, pinned_array

        check_gpu(device)
        self._pinned_array = pinned_array
        # CUDA's libraries may lie in wheels beside ONNX Runtime, where the loader does not look.
        onnxruntime.preload_dlls()
        options = {"device_id": str(device.index), "use_tf32": "0"}
        self._session = onnxruntime.InferenceSession(
            data, session_options(threads), providers=[(_PROVIDER, options)], enable_fallback=0
        )
        _check_provider(device, self._session.get_providers())
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


def _check_provider(device: Device, providers: list[str]) -> None:
    if _PROVIDER not in providers:
        raise DeviceError(
            f"device {device} was asked for, and ONNX Runtime {onnxruntime.__version__} here "
            f"offers only {', '.join(providers)}; uninstall onnxruntime, install onnxruntime-gpu "
            "with the CUDA and cuDNN it names, or serve on device cpu"
        )
