"""Exported programs (`.pt2`) through torch, on the CPU. Loading one unpickles: it is code.

Rules kept here:
- a program runs as it was exported; 16 bit numbers inside are its own business;
- a program of 8 bit numbers is compiled with its weights frozen while it loads. As it was exported
  it converts every tensor there and back and computes in single precision: a perceptron that took
  0.4 ms a row before quantization took 20 ms, and 0.4 compiled (1.4, 21 and 0.8 for 8 rows);
- what it gives then depends on the processor: one without VNNI adds products in 16 bits, which
  overflow if the weights use all 8. The replay at load sees it, if the golden rows do;
- it is compiled ahead of time, not when it first runs: that serves any number of rows and every
  thread with one piece of code, and nothing is compiled while requests wait.

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

from model_store.manifest import Precision
from model_store.signature import Signature
from services.errors import BackendError
from services.inference.backends.compiled_package import load_package
from services.inference.backends.torch_module import Module, TorchModuleBackend

_QUANTIZED_OPERATORS = "torch.ao.quantization.fx._decomposed"
"""What registers the operators of quantized programs; torch does not by itself."""

_FROZEN = {"freezing": True, "compile_threads": 1}


class ExportedProgramBackend(TorchModuleBackend):
    """One exported program, called with the signature's inputs in order.

    Args:
        data: the file, which may hold code.
        signature: names and order of inputs and outputs.
        threads: of torch, in the whole process.
        precision: programs of `int8` are compiled, which takes 15 s and more.

    Raises:
        BackendError: it needs a library or a compiler that is not here.
    """

    platform = "pytorch_pt2"

    def __init__(
        self, data: bytes, signature: Signature, threads: int, precision: Precision
    ) -> None:
        program = load_program(data)
        module: Module = compiled(program) if precision == "int8" else program.module()
        super().__init__(module, signature, threads)


def load_program(data: bytes) -> torch.export.ExportedProgram:
    """Loads a program, with the operators of quantized ones at hand.

    Raises:
        BackendError: it does not load, and torchao, which might have its operators, is missing.
        Exception: whatever torch raises on a file that is no program.
    """
    importlib.import_module(_QUANTIZED_OPERATORS)
    logger = logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # it logs what it also raises
    try:
        try:
            return torch.export.load(io.BytesIO(data))
        except RuntimeError as error:
            _import_torchao(error)
        return torch.export.load(io.BytesIO(data))
    finally:
        logger.disabled = was_disabled


def compiled(program: torch.export.ExportedProgram) -> Module:
    """Native code of a program for this processor, its weights frozen.

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
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder, warnings.catch_warnings():
        # torch warns of its own use of TorchScript, and of how it copies tensors.
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "program.pt2")
        # By itself torch unrolls recurrent layers over one length.
        recurrent = (
            register_lstm_while_loop_decomposition(),
            register_gru_while_loop_decomposition(),
        )
        with torch.no_grad(), recurrent[0], recurrent[1]:
            torch._inductor.aoti_compile_and_package(
                program, package_path=path, inductor_configs=_FROZEN
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
