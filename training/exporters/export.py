"""Makes the artifacts of a recipe, one or two files each, from a trained model.

In: the weights of the best epoch. Out: for every entry of `export` an artifact, or the reason of
its failure.

Rules: each is made in its own process, with limits, from only the recipe and the weights, so that
it can be made again later; one that fails, crashes or times out does not stop the others, and
leaves no file.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from model_store.arrays.padded_rows import shortened
from model_store.host.cpu_features import BF16_FEATURES, cpu_features
from model_store.host.memory_limit import GIB
from model_store.manifest import MadeWith, Precision
from model_store.signature import Signature
from model_store.tensors import Array
from training.errors import ExportError, IsolationError
from training.exporters.half_precision import half_device
from training.loading.splits import Splits
from training.loop.loop import Trained
from training.loop.trained_model import trained_model
from training.network.model import for_export
from training.process.isolated_run import run_isolated
from training.process.library_versions import library_versions
from training.process.quiet import quiet
from training.recipe.parts.export_entries import (
    AotiInt8Export,
    Export,
    OnnxExport,
    OnnxFp16Export,
    OnnxInt8Export,
    OpenVinoInt8Export,
    Pt2Int8Export,
    QatEntry,
    TorchScriptExport,
)
from training.recipe.recipe import Recipe
from training.tracking.progress import say

EXAMPLE_ROWS = 2
"""Rows of the example: exporters specialise on 0 and 1 rows, so it has more."""
DEPRECATION_NOTE = (
    "note: torch has deprecated TorchScript and develops it no further; "
    "serve the ONNX artifacts where you can"
)
LIBRARIES = {
    "torchscript": ("torch",),
    "onnx": ("onnx", "onnxruntime", "onnxscript", "torch"),
    "pt2": ("torch", "torchao"),
    "aoti": ("torch", "torchao"),
    "openvino": ("nncf", "onnx", "onnxscript", "openvino", "torch"),
}
"""Libraries whose versions are recorded for an artifact of each kind."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One entry of the recipe after the attempt to make it."""

    entry: Export
    path: Path
    failure: str | None
    """Reason why there is no file at `path`; None if there is one."""
    made_with: MadeWith = field(default_factory=MadeWith)

    def paths(self) -> list[Path]:
        """Returns the paths of its one or two files."""
        weights = self.entry.weights_file
        return [self.path] if weights is None else [self.path, self.path.with_name(weights)]


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Input of the process that makes one entry."""

    recipe: Recipe
    """Recipe that builds the model."""
    weights: Path
    """Path of its weights, as safetensors."""
    signature: Signature
    entry: Export
    inputs: dict[str, Array]
    """Rows of training data, in argument order, each [rows, ...]: an example, and calibration rows
    for the ranges of activations."""
    folder: Path
    """Destination of the file."""
    graph: Path
    """The FP32 ONNX graph, from which others are made; the first entry that needs it makes it."""
    qat_weights: Path | None = None
    """Quantization-aware weights, for entries of `method: qat`."""


def export_all(
    recipe: Recipe, trained: Trained, splits: Splits, folder: Path, console: Console
) -> list[Exported]:
    """Makes every artifact that the recipe lists.

    Args:
        recipe: recipe with the entries and their limits.
        trained: trained model.
        splits: data; the train split gives examples and calibration rows.
        folder: destination of the files.
        console: console for progress.
    """
    entries = recipe.listed_exports()
    if any(isinstance(entry, TorchScriptExport) for entry in entries):
        say(console, DEPRECATION_NOTE)
    found = []
    for entry in entries:
        with console.status(f"exporting {entry.name}"):
            found.append(export_entry(recipe, trained, splits, entry, folder))
    return found


def export_entry(
    recipe: Recipe,
    trained: Trained,
    splits: Splits,
    entry: Export,
    folder: Path,
    *,
    graph: Path | None = None,
    time_limit_s: float | None = None,
) -> Exported:
    """Makes one artifact.

    Args:
        recipe: recipe that builds the model and has the limits.
        trained: trained model.
        splits: data; the train split gives examples and calibration rows.
        entry: entry to make.
        folder: destination of the file.
        graph: path of the FP32 ONNX graph, which may not exist yet; default in the folder.
        time_limit_s: time limit in seconds; default of the recipe.
    """
    rows = max(EXAMPLE_ROWS, getattr(entry, "calibration_rows", 0))
    inputs = {name: array[:rows] for name, array in splits.train.inputs.items()}
    graph = graph or folder / OnnxExport().file
    job = ExportJob(
        recipe,
        trained.weights,
        trained.signature,
        entry,
        inputs,
        folder,
        graph,
        trained.qat_weights,
    )
    return _attempt(job, time_limit_s or recipe.export_limits.time_s)


def _attempt(job: ExportJob, time_limit_s: float) -> Exported:
    entry, limits = job.entry, job.recipe.export_limits
    path = job.folder / entry.file
    try:
        made_with = run_isolated(
            export_one,
            job,
            time_limit_s=time_limit_s,
            memory_limit_bytes=int(limits.memory_gib * GIB),
        )
    except IsolationError as error:
        refused = Exported(entry, path, f"export failed: {error}")
        for file in refused.paths():
            file.unlink(missing_ok=True)
        return refused
    return Exported(entry, path, None, made_with)


def export_one(job: ExportJob) -> MadeWith:
    """Makes one artifact; runs in its own process.

    Returns:
        The libraries, CPU features and device it was made with.

    Raises:
        Exception: any exception of the exporter for an unsupported model.
    """
    device = half_device() if job.entry.precision == "fp16" else "cpu"
    model = trained_model(job.recipe, job.weights, [spec.name for spec in job.signature.inputs])
    with quiet():
        # The TorchScript compiler needs the network's own code with its control flow.
        scripts = isinstance(job.entry, TorchScriptExport) and job.entry.method == "script"
        _write(model if scripts else for_export(model), job)
    return MadeWith(
        libraries=library_versions(LIBRARIES[job.entry.kind]),
        cpu_features=cpu_features(),
        device=device,
    )


def _write(model: nn.Module, job: ExportJob) -> None:
    """Imports the exporter of an entry, and writes the artifact."""
    entry, signature, path = job.entry, job.signature, job.folder / job.entry.file
    short = shortened(job.inputs, signature)
    example = tuple(torch.from_numpy(array[:EXAMPLE_ROWS]) for array in short.values())
    match entry.kind:
        case "torchscript":
            from training.exporters.torchscript import export_torchscript

            export_torchscript(model, example, path, entry.method)
        case "onnx":
            _write_onnx(model, example, entry, job)
        case "pt2":
            from training.exporters.pt2 import write_pt2

            write_pt2(_program(model, example, job), path)
        case "aoti":
            from training.exporters.aot_inductor import write_aoti

            narrow = isinstance(entry, AotiInt8Export) and entry.method == "weights"
            write_aoti(_program(model, example, job), path, widen_weights=not narrow)
        case "openvino":
            _check_bf16(entry.precision)
            _check_resize(job.recipe)
            from training.exporters.openvino_ir import write_openvino

            method = entry.method if isinstance(entry, OpenVinoInt8Export) else ""
            write_openvino(
                _openvino_source(model, example, job),
                signature,
                path,
                calibration=job.inputs if method == "static" else None,
                weights_only=method == "weights",
            )


def _program(
    model: nn.Module, example: tuple[Tensor, ...], job: ExportJob
) -> torch.export.ExportedProgram:
    """Makes the program for torch's own kinds, in the entry's precision."""
    from training.programs.exported_program import exported_program, weights_program
    from training.programs.quantization_aware import load_quantization_aware

    entry, signature = job.entry, job.signature
    if isinstance(entry, QatEntry):
        assert job.qat_weights is not None, "a recipe with such an entry trains for 8 bits"
        trained = load_quantization_aware(model, example, signature, job.qat_weights)
        program: torch.export.ExportedProgram = trained.converted(example, signature)
        return program
    if isinstance(entry, Pt2Int8Export | AotiInt8Export) and entry.method == "weights":
        return weights_program(model, example, signature)
    return exported_program(model, example, signature, entry.precision, job.inputs)


def _check_bf16(precision: Precision) -> None:
    if precision == "bf16" and not BF16_FEATURES.intersection(cpu_features()):
        raise ExportError(
            "this processor has no instructions for bfloat16 "
            f"({' or '.join(sorted(BF16_FEATURES))}), so OpenVINO would compute in FP32; "
            "export it where it is to run"
        )


def _check_resize(recipe: Recipe) -> None:
    for position, step in enumerate(recipe.preprocess):
        if step.resize is not None and step.resize.antialias:
            raise ExportError(
                f"preprocess.{position}.resize has antialias: true, and OpenVINO has no such "
                "operation; take antialias: false, or drop kind: openvino"
            )


def _write_onnx(
    model: nn.Module,
    example: tuple[Tensor, ...],
    entry: OnnxExport | OnnxFp16Export | OnnxInt8Export,
    job: ExportJob,
) -> None:
    """Writes the FP32 graph, or the 8-bit or 16-bit graph."""
    if isinstance(entry, OnnxFp16Export):
        from training.exporters.onnx_graph import export_onnx

        export_onnx(model, example, job.signature, job.folder / entry.file, half=True)
        return
    from training.exporters.onnx_int8 import (
        export_onnx_dynamic_int8,
        export_onnx_static_int8,
    )

    source, path = _onnx_source(model, example, job), job.folder / entry.file
    if isinstance(entry, OnnxExport):
        return
    if entry.method == "dynamic":
        export_onnx_dynamic_int8(source, entry.op_types, path)
    else:
        export_onnx_static_int8(source, job.inputs, entry.op_types, path)


def _onnx_source(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> Path:
    """Returns the FP32 ONNX graph, from which others are made, and makes it if missing."""
    from training.exporters.onnx_graph import export_onnx

    if not job.graph.exists():
        export_onnx(model, example, job.signature, job.graph)
    return job.graph


def _openvino_source(
    model: nn.Module, example: tuple[Tensor, ...], job: ExportJob
) -> torch.export.ExportedProgram | Path:
    """Returns the exported program, or the ONNX graph if there are recurrent layers or loops."""
    from training.programs.exported_program import exported_program, has_loops

    program = exported_program(model, example, job.signature)
    return _onnx_source(model, example, job) if has_loops(program) else program
