"""Makes one artifact from an original; runs in an isolated process with limits.

| artifact           | from an exported program (`pt2`)      | from ONNX                      |
|--------------------|---------------------------------------|--------------------------------|
| onnx               | torch's dynamo exporter               | the file itself                |
| onnx-int8          | ONNX Runtime's quantizer, of the ONNX artifact                         |
| openvino (-int8)   | OpenVINO's converter (and NNCF)       | the same                       |
| pt2, pt2-bf16, ... | the file itself, or exported again    | -                              |
| aoti               | AOTInductor                           | -                              |

Every original is also published as it is, in its own kind.
"""

import shutil
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flambeau.protocol.row_form import batch_of
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import STORED_KINDS, ArtifactKind
from model_store.host.cpu_features import cpu_features
from model_store.manifest import MadeWith
from training.errors import ExportError, IsolationError
from training.exporters.export import EXAMPLE_ROWS, Exported
from training.exporters.python_model import copy_class
from training.process.isolated_run import run_limited
from training.process.library_versions import library_versions
from training.process.quiet import quiet
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.recipe import ExportLimits

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveJob:
    """Input of the process that makes one artifact."""

    entry: Export
    source: Path
    """Path of the original's file."""
    source_weights: Path | None
    source_kind: ArtifactKind
    signature: Signature
    inputs: dict[str, Array]
    """Example rows by input name, [rows, ...]: an example, and calibration rows."""
    folder: Path
    """Destination of the file."""

    @property
    def path(self) -> Path:
        """Path of the file to write."""
        return self.folder / self.entry.file


def derive_apart(job: DeriveJob, limits: ExportLimits) -> Exported:
    """Makes the artifact in a separate process.

    Args:
        job: the artifact.
        limits: limits of the process.
    """
    try:
        made_with = run_limited(
            derive,
            job,
            limits=limits,
        )
    except IsolationError as error:
        refused = Exported(job.entry, job.path, f"export failed: {error}")
        for file in refused.paths():
            file.unlink(missing_ok=True)
        return refused
    return Exported(job.entry, job.path, None, made_with)


def derive(job: DeriveJob) -> MadeWith:
    """Makes the artifact.

    Raises:
        ExportError: it cannot be made from this original, or on this machine.
        Exception: any exception of the libraries for an unsupported model.
    """
    entry = job.entry
    if entry.kind == job.source_kind and entry.precision == "fp32":
        _copy(job)
        return _made_with(entry)
    _check_names_apart(job)
    if entry.kind == "onnx":
        _onnx(job)
    elif entry.kind == "openvino":
        _openvino(job)
    else:
        _from_program(job)
    return _made_with(entry)


def _made_with(entry: Export) -> MadeWith:
    return MadeWith(
        libraries=library_versions(EXPORT_KINDS[entry.kind].recorded), cpu_features=cpu_features()
    )


def _check_names_apart(job: DeriveJob) -> None:
    """Refuses an output with the name of an input where a graph has one list of names for both."""
    inputs = {spec.name for spec in job.signature.inputs}
    same = [spec.name for spec in job.signature.outputs if spec.name in inputs]
    if same and EXPORT_KINDS[job.entry.kind].one_list_of_names:
        raise ExportError(
            f"output '{same[0]}' has the name of an input, and a graph of {job.entry.kind} has one "
            "list of names for both; give the output another name"
        )


def _copy(job: DeriveJob) -> None:
    if STORED_KINDS[job.entry.kind].has_class:
        copy_class(job.source, job.path)
        return
    shutil.copyfile(job.source, job.path)
    if job.source_weights is not None and job.entry.weights_file is not None:
        shutil.copyfile(job.source_weights, job.folder / job.entry.weights_file)


def _onnx(job: DeriveJob) -> None:
    """Writes the FP32 graph, or quantizes it."""
    from training.exporters.onnx_int8 import export_onnx_dynamic_int8, export_onnx_static_int8

    entry = job.entry
    graph = _fp32_graph(job)
    if not isinstance(entry, OnnxInt8Export):
        return
    if entry.method == "static" and _has_convolutions(graph):
        rows = _rows(job.inputs, entry.calibration_rows)
        export_onnx_static_int8(graph, rows, entry.op_types, job.path, job.signature)
    else:
        export_onnx_dynamic_int8(graph, ("Gemm", "MatMul"), job.path)


def _has_convolutions(graph: Path) -> bool:
    import onnx

    return any(node.op_type == "Conv" for node in onnx.load(graph).graph.node)


def _fp32_graph(job: DeriveJob) -> Path:
    """Returns the path of the FP32 ONNX graph; makes it if it is missing."""
    path = job.folder / OnnxExport().file
    if path.exists():
        return path
    if job.source_kind == "onnx":
        shutil.copyfile(job.source, path)
        return path
    program_to_onnx(job.source, job.signature, path)
    return path


def program_to_onnx(program: Path, signature: Signature, path: Path) -> None:
    """Converts an exported program to ONNX by torch's dynamo exporter.

    Args:
        program: file of `torch.export.save`. It may contain code: trust it, or be isolated.
        signature: names of the inputs and outputs, in order.
        path: output file.

    Raises:
        Exception: any exception of torch for a program that it cannot convert.
    """
    import onnx
    import torch

    from training.exporters.onnx_graph import CHATTY_LOGGERS, strip_metadata
    from training.programs.own_operators import check_onnx

    loaded = torch.export.load(program)
    _drop_computed_ranges(loaded)
    with quiet(loggers=CHATTY_LOGGERS), torch.no_grad():
        try:
            torch.onnx.export(
                loaded,
                f=str(path),
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=[spec.name for spec in signature.inputs],
                output_names=[spec.name for spec in signature.outputs],
            )
        except Exception as error:  # the exporter may raise anything for an unsupported model
            check_onnx(error)
            raise
    document = onnx.load(path)
    strip_metadata(document)
    free_output_names(document)
    onnx.save(document, path)


def _drop_computed_ranges(program: "ExportedProgram") -> None:
    """Removes the limits of computed sizes, such as `2*n`: torch's exporter fails on them.

    Those of the names in them, such as `n`, say the same.
    """
    for node in program.graph.nodes:
        if (mode := getattr(node.meta.get("val"), "fake_mode", None)) is not None:
            ranges = mode.shape_env.var_to_range
            for computed in [size for size in ranges if not size.is_Symbol]:
                del ranges[computed]


def free_output_names(document: "ModelProto") -> None:
    """Renames values of a graph that have the name of an output and are another one.

    torch's exporter names values after the network's own, and outputs as it is told, so a network
    whose output `embedding` follows a layer of that name would get an invalid graph.
    """
    outputs = {value.name for value in document.graph.output}
    made = [name for node in document.graph.node for name in node.output]
    for name in {name for name in outputs if made.count(name) > 1}:
        last = max(i for i, node in enumerate(document.graph.node) if name in node.output)
        for node in document.graph.node[:last]:
            _rename(node.output, name)
        for node in document.graph.node[: last + 1]:
            _rename(node.input, name)


def _rename(names: MutableSequence[str], name: str) -> None:
    for place, one in enumerate(names):
        if one == name:
            names[place] = f"{name}.inner"


def _openvino(job: DeriveJob) -> None:
    import torch

    from training.exporters.openvino_ir import check_bf16, write_openvino
    from training.programs.exported_program import has_loops

    check_bf16(job.entry.precision)
    for spec in job.signature.inputs:
        if spec.optional:
            raise ExportError(f"input '{spec.name}' is optional, and OpenVINO needs every input")
    source: Path | torch.export.ExportedProgram = job.source
    if job.source_kind == "pt2":
        program = torch.export.load(job.source)
        source = _fp32_graph(job) if has_loops(program) else program
    method = getattr(job.entry, "method", "")
    write_openvino(
        source,
        job.signature,
        job.path,
        calibration=_rows(job.inputs, 512) if method == "static" else None,
        weights_only=method == "weights",
    )


def _from_program(job: DeriveJob) -> None:
    """Writes an exported program in another precision, or compiles it."""
    import torch

    from training.exporters.aot_inductor import compile_program
    from training.programs.exported_program import exported_program, weights_program

    if job.source_kind != "pt2":
        raise ExportError(f"{job.entry.name} cannot be made from {job.source_kind}")
    module = torch.export.load(job.source).module()
    rows = EXAMPLE_ROWS if job.signature.has_batch else 1
    batch = batch_of(job.inputs, job.signature, rows)
    example = tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in batch.values())
    entry = job.entry
    if getattr(entry, "method", "") == "weights":
        program = weights_program(module, example, job.signature)
    else:
        program = exported_program(module, example, job.signature, entry.precision, job.inputs)
    if entry.kind == "aoti":
        compile_program(program, job.path, freezing=getattr(entry, "method", "") != "weights")
    else:
        torch.export.save(program, job.path)


def _rows(inputs: Mapping[str, Array], rows: int) -> dict[str, Array]:
    return {name: array[:rows] for name, array in inputs.items()}
