"""Runs a model in each of its forms: the checkpoint in torch, and every exported file.

A runner takes NumPy arrays by input name, each [rows, ...], and gives arrays by output name. It
runs the exact file that is published, on one thread.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from model_store.manifest import ArtifactKind
from model_store.signature import Signature
from model_store.tensors import Array
from training.model import run_model
from training.quiet import quiet

Runner = Callable[[Mapping[str, Array]], dict[str, Array]]

_ERRORS_ONLY = 3


def module_runner(model: nn.Module, signature: Signature) -> Runner:
    """Runs a torch module, which is put into evaluation mode."""
    model.eval()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = run_model(model, [inputs[spec.name] for spec in signature.inputs])
        return {s.name: a for s, a in zip(signature.outputs, outputs, strict=True)}

    return run


def file_runner(kind: ArtifactKind, path: Path, signature: Signature) -> Runner:
    """Opens an exported file.

    Raises:
        Exception: whatever the runtime raises for a file it cannot open.
    """
    return _torchscript(path, signature) if kind == "torchscript" else _onnx(path, signature)


def _torchscript(path: Path, signature: Signature) -> Runner:
    # The deprecation is known: the user is told in one line.
    with quiet(DeprecationWarning):
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return module_runner(module, signature)


def _onnx(path: Path, signature: Signature) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in signature.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run
