"""Checkpoint to native code, by AOTInductor: a package that runs without a compiler.

It is tied to processors that can all that this one can, and to this version of torch. The API has
no public name yet; torch's documentation gives this one.
"""

import shutil
from pathlib import Path

import torch

from training.errors import ExportError
from training.quiet import quiet


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
        ExportError: there is no C++ compiler.
        Exception: whatever torch raises for a model it cannot compile.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ExportError("AOTInductor needs a C++ compiler; install g++, or drop kind: aoti")
    import torch._inductor.config as inductor

    settings = {"freezing": widen_weights, "compile_threads": 1}
    with quiet(loggers=("torch._inductor", "torch._dynamo")), inductor.patch(settings):
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
