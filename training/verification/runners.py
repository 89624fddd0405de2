"""Runs a model in each of its forms: the checkpoint in torch, and every exported file.

A runner takes NumPy arrays by input name, each [rows, ...], and returns arrays by output name. It
runs the exact file that is published, on one thread; FP16 on a GPU, if there is one.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from model_store.manifest import ArtifactKind, Precision
from model_store.signature import Signature
from model_store.tensors import Array
from training.errors import ExportError
from training.exporters.half_precision import CUDA_PROVIDER, half_device
from training.network.model import run_model
from training.process.quiet import quiet

Runner = Callable[[Mapping[str, Array]], dict[str, Array]]

LIBRARIES: dict[ArtifactKind, str] = {"onnx": "onnxruntime", "openvino": "openvino"}
"""Libraries that run the kinds that torch does not run."""
PT2E = "torchao.quantization.pt2e"
"""The module that registers the operators of quantized programs."""
_ERRORS_ONLY = 3


def module_runner(model: nn.Module, signature: Signature) -> Runner:
    """Returns a runner of a torch module, which is put into evaluation mode."""
    return _callable_runner(model.eval(), signature)


def _callable_runner(model: Callable[..., Any], signature: Signature) -> Runner:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = run_model(model, [inputs[spec.name] for spec in signature.inputs])
        return {s.name: a for s, a in zip(signature.outputs, outputs, strict=True)}

    return run


def load_libraries(kind: ArtifactKind, precision: Precision) -> None:
    """Imports the libraries that run an artifact, except torch.

    Raises:
        ImportError: a library is not installed.
    """
    if kind in LIBRARIES:
        importlib.import_module(LIBRARIES[kind])
    if kind == "pt2" and precision == "int8":
        importlib.import_module(PT2E)


def file_runner(
    kind: ArtifactKind, precision: Precision, path: Path, signature: Signature
) -> Runner:
    """Opens an exported file.

    Raises:
        Exception: any error of the runtime for a file that it cannot open.
    """
    match kind:
        case "torchscript":
            return _torchscript(path, signature)
        case "onnx":
            return _onnx(path, signature, half_device() if precision == "fp16" else "cpu")
        case "pt2":
            return _pt2(path, precision, signature)
        case "aoti":
            return _aoti(path, signature)
        case "openvino":
            return _openvino(path, precision, signature)


def _torchscript(path: Path, signature: Signature) -> Runner:
    # The deprecation is known: the user sees one line about it.
    with quiet(DeprecationWarning):
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return module_runner(module, signature)


def _onnx(path: Path, signature: Signature, device: Literal["cpu", "cuda"]) -> Runner:
    import onnxruntime

    providers: list[Any] = ["CPUExecutionProvider"]
    if device == "cuda":
        # CUDA's libraries may be in wheels beside ONNX Runtime, which its loader does not search.
        onnxruntime.preload_dlls()
        providers = [CUDA_PROVIDER, *providers]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    if device == "cuda" and CUDA_PROVIDER not in session.get_providers():
        raise ExportError("ONNX Runtime did not start CUDA; install the CUDA and cuDNN it names")
    names = [spec.name for spec in signature.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run


def _pt2(path: Path, precision: Precision, signature: Signature) -> Runner:
    load_libraries("pt2", precision)
    return _callable_runner(torch.export.load(path).module(), signature)


def _aoti(path: Path, signature: Signature) -> Runner:
    return _callable_runner(torch._inductor.aoti_load_package(str(path)), signature)


def _openvino(path: Path, precision: Precision, signature: Signature) -> Runner:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    names = [spec.name for spec in signature.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = request.infer(dict(inputs))
        return {name: np.array(found[name]) for name in names}

    return run
