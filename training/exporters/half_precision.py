"""Where FP16 can be made and proven: on a CUDA GPU, or on a processor with instructions for it.

Measured on an AVX2 processor, one thread, batches of 32: torch took 26.1 ms for the digits' CNN in
FP16 and 3.6 in FP32; ONNX Runtime took 1.0 and 1.2, because it converts every half and computes in
FP32. So nothing is gained there, and a proof says nothing of a device that computes in halves.
"""

from typing import Literal

import torch

from model_store.host.cpu_features import FP16_FEATURES, cpu_features
from training.errors import ExportError

CUDA_PROVIDER = "CUDAExecutionProvider"


def half_device() -> Literal["cpu", "cuda"]:
    """What FP16 runs on here: a GPU, if there is one.

    Raises:
        ExportError: neither a GPU that ONNX Runtime can use nor a processor that has FP16.
    """
    if torch.cuda.is_available():
        import onnxruntime

        if CUDA_PROVIDER in onnxruntime.get_available_providers():
            return "cuda"
        lacks = "ONNX Runtime here has no CUDA: install onnxruntime-gpu in onnxruntime's place"
    else:
        lacks = f"torch {torch.__version__} finds no CUDA GPU here"
    if FP16_FEATURES.intersection(cpu_features()):
        return "cpu"
    raise ExportError(
        f"fp16 is for GPUs, and {lacks}; this processor has neither "
        f"{' nor '.join(sorted(FP16_FEATURES))}: torch takes 7 times as long as in FP32, and ONNX "
        "Runtime computes in FP32, so that nothing would be proven; use bf16 or int8, or export "
        "on a machine with a GPU"
    )
