"""Runs a pipeline on example rows, and records its outputs, which servers compare theirs with.

Rules: the graph runs in a separate process with limits, through the artifacts that are nearest to
the original of each part; code of a part runs only if the store is a folder of this machine; the
answers must be the same twice, and a row's must not depend on the other rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from flambeau.protocol.row_form import Run
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import replay_once, run_in_batches
from model_store.gates import Gate
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, Manifest, Precision, PythonStep
from model_store.pipelines.graph import Pipeline
from model_store.pipelines.run_steps import StepError, run_steps
from model_store.pipelines.step_types import TypedPipeline
from model_store.python_step import check_result, open_step
from model_store.store import ModelStore
from model_store.tolerance import Tolerance
from training.errors import DataError, IsolationError, NothingProvenError
from training.exporters.python_model import description_path
from training.process.isolated_run import run_limited
from training.recipe.parts.export_entries import (
    Bf16Tolerance,
    ExportTolerance,
    Fp16Tolerance,
    Fp32Tolerance,
    Int8Tolerance,
)
from training.recipe.recipe import ExportLimits
from training.verification.output_gates import default_gates, gated_tolerance
from training.verification.runners import file_runner

LIMITS: dict[Precision, ExportTolerance] = {
    "fp32": Fp32Tolerance(),
    "bf16": Bf16Tolerance(),
    "fp16": Fp16Tolerance(),
    "int8": Int8Tolerance(),
}
"""Limits of each precision, the most precise first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """The files of one part, in a folder of ours."""

    artifact: Artifact
    precisions: tuple[Precision, ...]
    """Precisions of all artifacts, any of which may serve."""
    file: Path
    signature: Signature
    """With the inputs that the artifact takes."""
    step: PythonStep | None
    step_source: bytes


def record_outputs(
    pipeline: Pipeline,
    typed: TypedPipeline,
    parts: Mapping[str, PartFiles],
    inputs: Mapping[str, Array],
    gates: Mapping[str, Gate],
    limits: ExportLimits,
) -> tuple[GoldenRows, Tolerance]:
    """Returns the example rows with the outputs of the pipeline, and the tolerance of servers.

    Args:
        pipeline: the graph.
        typed: its steps.
        parts: files by the text that names each model.
        inputs: example rows by name, [rows, ...].
        gates: limits of outputs; others have limits by what they look like, as wide as the least
            precise artifact of the parts needs.
        limits: limits of the process.

    Raises:
        NothingProvenError: a step fails, or the outputs cannot be verified.
    """
    failure, outputs = _apart(pipeline, typed, parts, inputs, gates, limits)
    if failure:
        raise NothingProvenError(
            f"a second run of the examples, or one row alone, gives other outputs: {failure}; each "
            "model must be deterministic, and each row independent of the others"
        )
    widest = max((p for part in parts.values() for p in part.precisions), key=[*LIMITS].index)
    wide = default_gates(outputs, LIMITS[widest])
    return GoldenRows(dict(inputs), outputs), gated_tolerance(wide | dict(gates))


def run_apart(
    pipeline: Pipeline,
    typed: TypedPipeline,
    parts: Mapping[str, PartFiles],
    inputs: Mapping[str, Array],
    limits: ExportLimits,
) -> dict[str, Array]:
    """Returns the outputs of a pipeline, without their proof; see `record_outputs`.

    Raises:
        NothingProvenError: a step fails.
    """
    return _apart(pipeline, typed, parts, inputs, None, limits)[1]


def _apart(
    pipeline: Pipeline,
    typed: TypedPipeline,
    parts: Mapping[str, PartFiles],
    inputs: Mapping[str, Array],
    gates: Mapping[str, Gate] | None,
    limits: ExportLimits,
) -> tuple[str, dict[str, Array]]:
    """Runs `_record` in a process with limits."""
    try:
        return run_limited(
            _record,
            pipeline,
            typed,
            dict(parts),
            dict(inputs),
            gates,
            limits=limits,
        )
    except IsolationError as error:
        raise NothingProvenError(f"the pipeline does not run on the examples: {error}") from error


def fetch_part(store: ModelStore, manifest: Manifest, folder: Path) -> PartFiles:
    """Reads the files of the artifact that is nearest to a part's original.

    Raises:
        DataError: the part is code, and the store is not a folder of this machine.
        StoreError: a file is damaged, or the store cannot be read.
    """
    step = manifest.python_step
    allowed = [a for a in manifest.artifacts if store.is_local or not (a.is_code or step)]
    if not allowed:
        raise DataError(
            f"{manifest.model} {manifest.version} is code, which runs here only from a store that "
            f"is a folder, and not from {store.url}; pull it first (flambeau pull)"
        )
    artifact = min(allowed, key=lambda a: (a.precision != "fp32", a.speed_key()))
    folder.mkdir(parents=True)
    for entry in artifact.all_files():
        data = store.read_file(manifest, entry)
        if entry == artifact.file:
            artifact.check_file(data)
        (folder / entry.file).write_bytes(data)
    step_source = b"" if step is None else store.read_file(manifest, step.file)
    return part_files(manifest, artifact, folder, step_source)


def part_files(
    manifest: Manifest, artifact: Artifact, folder: Path, step_source: bytes
) -> PartFiles:
    """Returns the files of a part that are in a folder.

    Args:
        manifest: manifest of the part.
        artifact: the artifact to run.
        folder: folder of its files, which gets the description of a Python model.
        step_source: source of its Python step; empty without one.
    """
    if artifact.python is not None:
        description = artifact.python.model_dump_json()
        description_path(folder / artifact.file.file).write_text(description, encoding="utf-8")
    return PartFiles(
        artifact=artifact,
        precisions=tuple(a.precision for a in manifest.artifacts),
        file=folder / artifact.file.file,
        signature=manifest.signature.model_copy(update={"inputs": manifest.artifact_inputs()}),
        step=manifest.python_step,
        step_source=step_source,
    )


def _record(
    pipeline: Pipeline,
    typed: TypedPipeline,
    parts: dict[str, PartFiles],
    inputs: dict[str, Array],
    gates: Mapping[str, Gate] | None,
) -> tuple[str, dict[str, Array]]:
    """Returns why the outputs cannot be verified, or nothing, and the outputs; in its process.

    Without gates, they are not verified.
    """
    torch.set_num_threads(1)
    runs = {text: _runner(part) for text, part in parts.items()}
    run = partial(run_steps, pipeline, typed, runs)
    rows = typed.signature.max_batch_size
    try:
        outputs = run_in_batches(run, inputs, rows)
    except StepError as error:
        raise NothingProvenError(str(error)) from None
    if gates is None:
        return "", outputs
    tolerance = gated_tolerance(default_gates(outputs, Fp32Tolerance()) | dict(gates))
    again = replay_once("the examples", run, GoldenRows(inputs, outputs), rows, tolerance.gates)
    return again.failure(tolerance) or "", outputs


def _runner(part: PartFiles) -> Run:
    artifact, step = part.artifact, part.step
    run = file_runner(artifact.kind, artifact.precision, part.file, part.signature)
    if step is None:
        return run
    convert = open_step(part.step_source, step.name, step.args)

    def run_both(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return run(check_result(convert(inputs), step.inputs))

    return run_both
