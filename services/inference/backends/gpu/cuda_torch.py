"""TorchScript models through torch, on a GPU. Loading one runs its code: local stores only.

Rules:
- each instance has its own stream, so several share a GPU without waiting for each other; a twin
  has one too, and shares the module, unless that changes itself when it runs;
- copies to and from the GPU use page-locked memory and do not block; the thread sleeps, without
  spinning, until the whole run has ended;
- outputs are copied into memory that is allocated anew for every run;
- single precision is computed as FP32, as the artifact was verified, not as TF32.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

import copy
from collections.abc import Mapping

import numpy as np
import torch

from flambeau.protocol.tensors import Array
from services.inference.backends.backend import Backend
from services.inference.backends.gpu.cuda_device import check_gpu, pinned_array
from services.inference.backends.gpu.cuda_graphs import CAPTURE_LOCK, CudaGraphs, graph_sizes
from services.inference.backends.gpu.device_faults import device_error, is_device_fault
from services.inference.backends.gpu.fp32_convolutions import forbid_tf32
from services.inference.backends.gpu.module_state import changes_itself
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torch_module import as_tensors
from services.inference.backends.torchscript import load_module
from services.inference.backends.verified_artifact import VerifiedArtifact


class CudaTorchBackend(Backend):
    """One scripted or traced module on one GPU, called with the signature's inputs in order.

    Args:
        artifact: the module, which may contain code.
        options: the GPU to run on; CUDA graphs are captured for its preferred batch sizes, or for
            powers of two if there are none.

    Raises:
        DeviceError: CUDA cannot use this GPU.
    """

    platform = "pytorch_torchscript"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        device, signature = options.device, artifact.signature
        check_gpu(device)
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        self._device, self._signature = str(device), signature
        self._sizes = graph_sizes(signature, options.preferred_batch_sizes)
        self._take_stream()
        with torch.cuda.stream(self._stream):
            self._module = load_module(artifact.data, self._device)
        if isinstance(self._module, torch.jit.ScriptModule):
            forbid_tf32(self._module)
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]

    def buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Returns page-locked memory for one input; see `Backend.buffer`."""
        return pinned_array(shape, dtype)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        try:
            arrays = [_writable(inputs[name]) for name in self._inputs]
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                results = self._launch([torch.from_numpy(array) for array in arrays])
                values = [_start_copy(result) for result in results]
                self._ended.record(self._stream)
                self._ended.synchronize()
        except Exception as error:
            if is_device_fault(error):
                raise device_error(error) from error
            raise
        return dict(zip(self._outputs, values, strict=True))

    def twin(self) -> "CudaTorchBackend | None":
        """Returns a backend with the same module, and a stream and graphs of its own."""
        if not isinstance(self._module, torch.jit.ScriptModule) or changes_itself(self._module):
            return None
        twin = copy.copy(self)
        twin.is_twin = True
        twin._take_stream()
        return twin

    def close(self) -> None:
        """Frees the module and its graphs, and returns their memory to the GPU."""
        del self._graphs, self._module
        with CAPTURE_LOCK:
            torch.cuda.empty_cache()

    def _take_stream(self) -> None:
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._graphs = CudaGraphs(self._call, self._signature, self._stream, self._sizes)

    def _launch(self, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        """Starts a run; returns tensors on the GPU, [rows, ...], valid after the stream ran it."""
        rows = arguments[0].shape[0] if arguments[0].ndim else 1
        captured = self._graphs.for_rows(rows)
        if captured is None:
            device = self._stream.device
            return self._call(*(a.to(device, non_blocking=True) for a in arguments))
        # The remaining rows hold zeros or rows of an earlier batch; their outputs are cut off.
        for place, argument in zip(captured.inputs, arguments, strict=True):
            place[:rows].copy_(argument, non_blocking=True)
        captured.graph.replay()
        return [output[:rows] for output in captured.outputs]

    def _call(self, *arguments: torch.Tensor) -> list[torch.Tensor]:
        return as_tensors(self._module(*arguments), self._outputs)


def _writable(array: Array) -> Array:
    """Returns the array, or a page-locked copy if torch cannot view it."""
    if array.flags.writeable and array.flags.c_contiguous:
        return array
    copy = pinned_array(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _start_copy(result: torch.Tensor) -> Array:
    """Starts to copy one output; the returned array is valid once the stream has run the copy."""
    host: Array = (
        torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        .copy_(result, non_blocking=True)
        .numpy()
    )
    return host
