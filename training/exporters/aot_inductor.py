"""Checkpoint to native code, by AOTInductor: a package that runs without a compiler.

It is tied to processors that can all that this one can, and to this version of torch. The API has
no public name yet; torch's documentation gives this one.
"""

import shutil
from pathlib import Path

import torch

from training.errors import ExportError
from training.exporters.exported_program import whole_recurrent_layers
from training.process.quiet import quiet


def write_aoti(
    program: torch.export.ExportedProgram, path: Path, *, widen_weights: bool = True
) -> None:
    """Compiles an exported program for this processor.

    Args:
        program: the model.
        path: the file to write, whose name ends in `.pt2`.
        widen_weights: whether weights of 8 bits that are multiplied in FP32 may be kept in FP32,
            which is faster.

    Raises:
        ExportError: there is no C++ compiler, or it cannot be compiled.
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
