"""The exporter of ONNX: FP32 and FP16 from the model, 8 bits from the FP32 graph."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.manifest import Precision
from training.errors import ExportError
from training.exporters.exporter import ExportJob
from training.exporters.half_precision import CUDA_PROVIDER, half_device
from training.exporters.onnx_graph import export_onnx
from training.exporters.onnx_int8 import export_onnx_dynamic_int8, export_onnx_static_int8
from training.network.runner import Runner
from training.recipe.kinds.onnx_kind import OnnxInt8Export

_ERRORS_ONLY = 3


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
    """Writes the graph in the entry's precision; see `Exporter.write`."""
    entry = job.entry
    if entry.precision == "fp16":
        export_onnx(model, example, job.signature, job.path, half=True)
        return
    source = fp32_graph(model, example, job)
    if isinstance(entry, OnnxInt8Export):
        if entry.method == "dynamic":
            export_onnx_dynamic_int8(source, entry.op_types, job.path)
        else:
            export_onnx_static_int8(source, job.inputs, entry.op_types, job.path)


def fp32_graph(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> Path:
    """Returns the FP32 graph, from which others are made, and makes it if missing."""
    if not job.graph.exists():
        export_onnx(model, example, job.signature, job.graph)
    return job.graph


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens a file in ONNX Runtime; see `Exporter.open_file`."""
    import onnxruntime

    providers: list[Any] = ["CPUExecutionProvider"]
    on_gpu = precision == "fp16" and half_device() == "cuda"
    if on_gpu:
        # CUDA's libraries may be in wheels beside ONNX Runtime, which its loader does not search.
        onnxruntime.preload_dlls()
        providers = [CUDA_PROVIDER, *providers]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    if on_gpu and CUDA_PROVIDER not in session.get_providers():
        raise ExportError("ONNX Runtime did not start CUDA; install the CUDA and cuDNN it names")
    names = [spec.name for spec in signature.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run
