"""Selects the device for making and verifying FP16: a CUDA GPU, or a CPU with FP16 instructions.

Measured on an AVX2 processor, one thread, batches of 32: torch took 26.1 ms for the digits' CNN in
FP16 and 3.6 in FP32; ONNX Runtime took 1.0 and 1.2, because it converts every half and computes in
FP32. So FP16 gains nothing there, and its verification says nothing about real FP16 hardware.
"""

from typing import Literal

import torch

from model_store.host.cpu_features import FP16_FEATURES, cpu_features
from training.errors import ExportError

CUDA_PROVIDER = "CUDAExecutionProvider"


def half_device() -> Literal["cpu", "cuda"]:
    """Returns the device for FP16: a GPU, if there is one.

    Raises:
        ExportError: there is no GPU that ONNX Runtime can use, and the CPU has no FP16.
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
        "Runtime computes in FP32, so that nothing would be verified; use bf16 or int8, or export "
        "on a machine with a GPU"
    )
