"""Distinguishes a fault of a GPU from a fault of the model or its input.

In: a runtime's exception. Out: True if the device failed. The runtimes have no common error class
for it, so their messages decide: torch's `OutOfMemoryError` and `AcceleratorError` say "CUDA out of
memory" and "CUDA error", ONNX Runtime's say "CUDA failure 2" or "CUBLAS failure".

The CPU has no device faults: an allocation that fails there is one of absurd size, which an input
caused, and a machine that is really out of memory kills the process.
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
    """Returns True if the cause is a GPU in error or out of memory, and not an input."""
    return _names_fault(str(error))


def device_error(error: Exception) -> DeviceError:
    """Returns the error to raise for such a fault, with the line of its message that names it.

    TorchScript puts a traceback of the module's code before that line.
    """
    reason = next(filter(_names_fault, str(error).splitlines())).strip()
    return DeviceError(
        f"the device failed, not the input: {reason}; if it keeps failing, restart the server"
    )


def _names_fault(text: str) -> bool:
    lowered = text.lower()
    return any(words in lowered for words in _WORDS)
