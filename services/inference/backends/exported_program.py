"""Exported programs (`.pt2`) through torch, on the CPU. Loading one unpickles it, so it is code.

Rules:
- a program runs as it was exported, including its own conversions to 16-bit types;
- an int8 program is compiled with frozen weights while it loads. As exported, it dequantizes and
  quantizes every tensor and computes in single precision: a perceptron that took 0.4 ms per row
  before quantization took 20 ms, and 0.4 ms compiled (1.4, 21 and 0.8 ms for 8 rows);
- an int8 program with convolutions is compiled without freezing: with frozen weights, torch 2.13
  reads the results of its 8-bit convolutions in another memory order than they are written in (the
  error of a digits CNN was 5.5, and is 0.05 now; 32 rows take 1.0 ms, instead of 0.94);
- the outputs of int8 depend on the processor: one without VNNI adds products in 16 bits, which
  overflow if weights use all 8 bits. The replay at load detects it if the golden rows overflow;
- compilation is ahead of time, not at the first run: one binary serves any number of rows and
  every thread, and nothing is compiled while requests wait.

Source: https://docs.pytorch.org/docs/stable/export.html and
https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_x86_inductor.html
"""

import importlib
import io
import logging
import tempfile
import warnings
from pathlib import Path

import torch
import torch._inductor

from services.errors import BackendError
from services.inference.backends.compiled_package import load_package
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torch_module import Module, TorchModuleBackend
from services.inference.backends.verified_artifact import VerifiedArtifact

_QUANTIZED_OPERATORS = "torch.ao.quantization.fx._decomposed"
"""Module that registers the operators of quantized programs; torch does not import it itself."""


class ExportedProgramBackend(TorchModuleBackend):
    """One exported program, called with the signature's inputs in order.

    Args:
        artifact: the program, which may contain code; `int8` ones are compiled, in 15 s or more.
        options: torch's thread count, for the whole process.

    Raises:
        BackendError: it needs a library or a compiler that is not installed.
    """

    platform = "pytorch_pt2"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        program, is_int8 = load_program(artifact.data), artifact.entry.precision == "int8"
        module: Module = compiled(program) if is_int8 else program.module()
        super().__init__(module, artifact.signature, options.threads)


def load_program(data: bytes) -> torch.export.ExportedProgram:
    """Loads a program, after registering the operators of quantized ones.

    Raises:
        BackendError: it does not load, and torchao, which might have its operators, is missing.
        Exception: any exception of torch for a file that is not a program.
    """
    importlib.import_module(_QUANTIZED_OPERATORS)
    logger = logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # it also raises the errors that it logs
    try:
        try:
            return torch.export.load(io.BytesIO(data))
        except RuntimeError as error:
            _import_torchao(error)
        return torch.export.load(io.BytesIO(data))
    finally:
        logger.disabled = was_disabled


def compiled(program: torch.export.ExportedProgram) -> Module:
    """Compiles a program to native code for this processor.

    Raises:
        BackendError: no compiler is installed.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.export._patches import (
        register_gru_while_loop_decomposition,
        register_lstm_while_loop_decomposition,
    )

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise BackendError(
            "an int8 program (pt2) is compiled when it loads, and no C++ compiler is here; install "
            "g++, or serve the version's int8 artifact of another kind (onnx, openvino, aoti)"
        ) from error
    convolves = any(str(node.target).startswith("aten.conv") for node in program.graph.nodes)
    settings = {"freezing": not convolves, "compile_threads": 1}
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder, warnings.catch_warnings():
        # torch warns of its own use of TorchScript, and of its own way to copy tensors.
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "program.pt2")
        # By default torch unrolls recurrent layers over one length.
        recurrent = (
            register_lstm_while_loop_decomposition(),
            register_gru_while_loop_decomposition(),
        )
        with torch.no_grad(), recurrent[0], recurrent[1]:
            torch._inductor.aoti_compile_and_package(
                program, package_path=path, inductor_configs=settings
            )
        return load_package(path)


def _import_torchao(error: RuntimeError) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torchao")
    except ImportError:
        reason = str(error).strip().splitlines()[0]
        raise BackendError(
            f"the program (pt2) does not load: {reason} If torchao quantized it, torchao has its "
            "operators and is not installed here; install torchao"
        ) from error
