"""Exports a checkpoint to native code by AOTInductor: a package that runs without a compiler.

It runs only on CPUs with all instruction sets of this one, and with this version of torch. The API
has no public name yet; torch's documentation uses this one.
"""

import shutil
from pathlib import Path

import torch

from training.errors import ExportError
from training.process.quiet import quiet
from training.programs.exported_program import whole_recurrent_layers


def write_aoti(
    program: torch.export.ExportedProgram, path: Path, *, widen_weights: bool = True
) -> None:
    """Compiles an exported program for this CPU.

    Args:
        program: model to compile.
        path: output file, whose name ends in `.pt2`.
        widen_weights: True if 8-bit weights that are multiplied in FP32 may be stored in FP32,
            which is faster.

    Raises:
        ExportError: there is no C++ compiler, or the program does not compile.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ExportError("AOTInductor needs a C++ compiler; install g++, or drop kind: aoti")
    import torch._inductor.config as inductor
    from torch._inductor.exc import InductorError

    settings = {"freezing": widen_weights, "compile_threads": 1}
    loggers = ("torch._inductor", "torch._dynamo")
    with quiet(loggers=loggers), whole_recurrent_layers(), inductor.patch(settings):
        try:
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        except InductorError as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"AOTInductor fails: {reason} Use kind: onnx, or pt2") from error
