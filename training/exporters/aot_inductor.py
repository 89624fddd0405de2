"""Exports a checkpoint to native code by AOTInductor: a package that runs without a compiler.

It runs only on CPUs with all instruction sets of this one, and with this version of torch. The API
has no public name yet; torch's documentation uses this one.
"""

import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.publishing.recurrent_layers import whole_recurrent_layers
from model_store.manifest import Precision
from training.errors import ExportError
from training.exporters.exporter import ExportJob
from training.exporters.torch_program import program_of
from training.network.runner import Runner, callable_runner
from training.process.quiet import quiet


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
    """Compiles the model for this CPU; see `Exporter.write`.

    Raises:
        ExportError: there is no C++ compiler, or the program does not compile.
    """
    # 8-bit weights that are multiplied in FP32 are stored in FP32, which is faster, unless the
    # entry asks for small files.
    compile_program(program_of(model, example, job), job.path, freezing=job.method != "weights")


def compile_program(program: torch.export.ExportedProgram, path: Path, *, freezing: bool) -> None:
    """Compiles an exported program for this CPU.

    Args:
        program: the program.
        path: output file.
        freezing: True to store weights in the form in which they are used.

    Raises:
        ExportError: there is no C++ compiler, or the program does not compile.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ExportError("AOTInductor needs a C++ compiler; install g++, or drop kind: aoti")
    import torch._inductor.config as inductor
    from torch._inductor.exc import InductorError

    settings = {"freezing": freezing, "compile_threads": 1}
    loggers = ("torch._inductor", "torch._dynamo")
    with quiet(loggers=loggers), whole_recurrent_layers(), inductor.patch(settings):
        try:
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        except InductorError as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"AOTInductor fails: {reason} Use kind: onnx, or pt2") from error


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens a package in torch; see `Exporter.open_file`."""
    return callable_runner(torch._inductor.aoti_load_package(str(path)), signature)
