"""Tells a fault of a GPU from a fault of the model or its input.

In: what a runtime raised. Out: whether what runs the model failed. The runtimes have no common
error class for it, so their words decide: torch's `OutOfMemoryError` and `AcceleratorError` say
"CUDA out of memory" and "CUDA error", ONNX Runtime's say "CUDA failure 2" or "CUBLAS failure".

There are none of the CPU: an allocation it refuses is one of absurd size, which an input asked
for, and a CPU that is truly out of memory ends the process.
"""

from services.errors import DeviceError

_WORDS = (
    "cuda error",
    "cuda failure",
    "cuda out of memory",
    "cublas failure",
    "cublas_status",
    "cudnn failure",
    "cudnn_status",
    # ONNX Runtime's memory arena, on a GPU that is full.
    "failed to allocate memory",
    "available memory of",
)


def is_device_fault(error: Exception) -> bool:
    """Whether a GPU in error or out of memory, and not an input, is to blame."""
    text = str(error).lower()
    return any(words in text for words in _WORDS)


def device_error(error: Exception) -> DeviceError:
    """What a backend raises for such a fault; the first line of a runtime's words is enough."""
    reason = str(error).strip().splitlines()[0]
    return DeviceError(
        f"the device failed, not the input: {reason}; if it goes on failing, restart the server"
    )
