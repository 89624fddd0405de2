"""Imports one model: derives artifacts, verifies them against the original, publishes a version.

In: an original, its example rows and a request. Out: the manifest of the new version.

Rules: nothing is published unless an artifact matches the original's outputs; each artifact is made
and verified in processes with limits, so that one that fails does not stop the others; an 8-bit
artifact that is no faster than the FP32 one is not kept.
"""

import hashlib
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flambeau.protocol.signature import Signature
from model_store.gates import GateError
from model_store.golden import GoldenRows
from model_store.manifest import Draft, Golden, Lineage, Manifest
from model_store.semver.semver_index import broken_callers
from model_store.store import ModelStore, Sign
from training.auto.pareto_front import drop_reasons
from training.errors import RecipeError
from training.exporters.triton_config import triton_config
from training.importing.derive import DeriveJob, derive_apart
from training.importing.derived_entries import derived_entries, source_of
from training.importing.original import Original
from training.importing.recording import check_examples, record_outputs, record_steps
from training.importing.request import ExampleRows, ImportRequest
from training.importing.steps import told_step
from training.process.library_versions import library_versions
from training.publish import (
    GOLDEN,
    LIBRARIES,
    REPORT,
    REPORT_PAGE,
    artifact_of,
    check_any_verified,
    file_entry,
    git_commit,
    write_triton_config,
)
from training.recipe.kinds.export_kinds import Export
from training.reporting.report import ArtifactReport, CheckpointReport, Report
from training.reporting.report_page import report_page
from training.verification.final_replay import replay_files
from training.verification.imported_reference import imported_reference
from training.verification.verify import Reference, verify_apart

IMPORT = "import.json"
"""File of a version with the request that made it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A verified model that is not published yet; its files are in a folder."""

    draft: Draft
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A published version, and the figures of its artifacts."""

    manifest: Manifest
    report: Report
    request: ImportRequest
    notes: tuple[str, ...] = ()
    """Facts about the model that were found on the way."""
    broken: str = ""
    """What breaks callers of the version before; empty if nothing does."""

    @property
    def alias(self) -> str | None:
        """Alias that moved to it; None if none did."""
        return self.request.alias

    def summary(self) -> dict[str, Any]:
        """Returns the version and the figures of its artifacts, as values of JSON."""
        manifest = self.manifest
        verdicts = {one.name: one.refusal or one.dropped for one in self.report.artifacts}
        refused = {name: reason for name, reason in verdicts.items() if reason is not None}
        lost = {k: reason for k, reason in self.request.refusals.items() if k not in verdicts}
        return {
            "model": manifest.model,
            "version": manifest.version,
            "semver": manifest.semver,
            "store": self.request.store,
            "artifacts": [
                {
                    "name": artifact.name,
                    "max_abs_difference": artifact.verification.max_abs_difference,
                    "ms_per_row": artifact.speed_key()[0],
                }
                for artifact in manifest.artifacts_by_speed()
            ],
            "refused": lost | refused,
            "alias": self.request.alias,
            "notes": [*self.notes, *self.request.notes, *filter(None, [self.broken])],
        }


def import_model(
    originals: Sequence[Original],
    examples: ExampleRows,
    request: ImportRequest,
    folder: Path,
    say: Say,
    sign: Sign | None = None,
) -> Imported:
    """Imports a model.

    Args:
        originals: the model in each format that it was brought in, the best source first.
        examples: rows with the model's own outputs, or without: the first original is then run.
        request: the name, the store, and what to make.
        folder: an empty folder, where the version is put together.
        say: receives a line for each step.
        sign: makes the version's signature; None leaves it unsigned.

    Raises:
        TrainingError: a step failed; see `training.errors`. Nothing is published.
        StoreError: the store cannot be read or written, or refuses the version.
    """
    store = ModelStore(request.store)  # a store that cannot be opened fails before the work
    prepared = prepare_model(originals, examples, request, folder, say)
    say(f"publishing {request.model}")
    manifest = store.publish(prepared.draft, folder, sign=sign, bump=request.bump)
    if request.alias is not None:
        why = f"imported {originals[0].source}"
        store.promote(request.model, manifest.version, request.alias, why)
    notes = tuple(note for one in originals for note in one.notes)
    broken = broken_callers(store, store.versions(request.model), manifest)
    return Imported(
        manifest=manifest, report=prepared.report, request=request, notes=notes, broken=broken
    )


def prepare_model(
    originals: Sequence[Original],
    examples: ExampleRows,
    request: ImportRequest,
    folder: Path,
    say: Say,
) -> Prepared:
    """Does all of `import_model` except the publication: its arguments and errors are the same."""
    originals = [one.with_sequences(request.sequence) for one in originals]
    first = originals[0]
    entries = _entries(originals, request, examples)
    examples = _with_outputs(first, examples, request, say)
    assert examples.outputs is not None
    try:
        expected = imported_reference(
            _with_sizes_of(examples, first.signature),
            examples.inputs,
            examples.outputs,
            labels=examples.targets,
            task=request.metric,
            gates=request.gates,
        )
    except GateError as error:
        raise RecipeError(f"gates: {error}") from error
    expected = replace(expected, sized=examples.sized)
    reports = _make(entries, originals, expected, request, folder, say)
    if not any(report.refusal is None for report in reports):
        reports += _as_brought(entries, originals, expected, request, folder, say)
    report = _report(request, first, expected, _without_losers(reports))
    draft = _draft(report, request, first, expected, folder)
    with told_step(say, "replaying the stored golden rows", request.limits.time_s):
        replay_files(draft, folder, None, request.limits)
    return Prepared(draft=draft, report=report)


def _with_outputs(
    original: Original, examples: ExampleRows, request: ImportRequest, say: Say
) -> ExampleRows:
    """Returns the examples in order, with the original's outputs.

    Rows whose outputs have rarer shapes become examples of their own size, and so do the rows
    without the inputs that a request may omit.
    """
    inputs = check_examples(original.source, original.signature, examples.inputs)
    if examples.outputs is not None:
        return replace(examples, inputs=inputs)
    if original.signature.sequence is not None:
        with told_step(say, f"running {original.source} step by step", request.limits.time_s):
            inputs = record_steps(original, inputs, request.limits)
    optional = {spec.name for spec in original.signature.inputs if spec.optional}
    fewer = {name: array for name, array in inputs.items() if name not in optional}
    given = [inputs, *([fewer] if len(fewer) < len(inputs) else [])]
    with told_step(say, f"recording the outputs of {original.source}", request.limits.time_s):
        found = [record_outputs(original, each, request.limits) for each in given]
    sides = [
        ({name: array[one.rows] for name, array in each.items()}, one.outputs)
        for each, recorded in zip(given, found, strict=True)
        for one in recorded
    ]
    targets = examples.targets
    if len(found[0]) > 1 and targets is not None:
        targets = targets[found[0][0].rows]
    return replace(
        examples, inputs=sides[0][0], outputs=sides[0][1], sized=sides[1:], targets=targets
    )


def _with_sizes_of(examples: ExampleRows, signature: Signature) -> Signature:
    """Returns a signature whose outputs vary along the axes on which the examples' differ."""
    outputs = []
    for spec in signature.outputs:
        shapes = [found[spec.name].shape for _, found in examples.sized]
        shape = tuple(
            -1
            if axis == spec.batch_axis or any(one[spec.row_axis(axis)] != size for one in shapes)
            else size
            for axis, size in enumerate(spec.shape)
        )
        outputs.append(spec.model_copy(update={"shape": shape}))
    return signature.model_copy(update={"outputs": tuple(outputs)})


def _entries(
    originals: Sequence[Original], request: ImportRequest, examples: ExampleRows
) -> list[Export]:
    """Returns the artifacts to make; an error also says what torch could not capture."""
    kinds = [one.kind for one in originals]
    try:
        return derived_entries(kinds, request.artifacts, examples.rows, examples.made_up)
    except RecipeError as error:
        lost = "".join(f"; no {kind}: {reason}" for kind, reason in request.refusals.items())
        raise RecipeError(f"{error}{lost}") from error


def _make(
    entries: Sequence[Export],
    originals: Sequence[Original],
    expected: Reference,
    request: ImportRequest,
    folder: Path,
    say: Say,
) -> list[ArtifactReport]:
    """Makes and verifies the artifacts in order."""
    by_kind = {one.kind: one for one in originals}
    reports = []
    for entry in entries:
        kind = source_of(entry, [one.kind for one in originals])
        assert kind is not None, "derived_entries selects what can be made"
        source = by_kind[kind]
        job = DeriveJob(
            entry=entry,
            source=source.file,
            source_weights=source.weights_file,
            source_kind=kind,
            signature=source.signature,
            inputs=dict(expected.test.inputs),
            folder=folder,
        )
        with told_step(say, f"making {entry.name}", request.limits.time_s):
            exported = derive_apart(job, request.limits)
        with told_step(say, f"verifying {entry.name}", request.limits.time_s):
            reports.append(verify_apart(exported, expected, request.limits))
    return reports


def _as_brought(
    entries: Sequence[Export],
    originals: Sequence[Original],
    expected: Reference,
    request: ImportRequest,
    folder: Path,
    say: Say,
) -> list[ArtifactReport]:
    """Makes the originals themselves into artifacts, if `auto` could make nothing else."""
    if request.artifacts != "auto":
        return []
    tried = {entry.name for entry in entries}
    kinds = [one.kind for one in originals if one.kind not in tried]
    names = derived_entries(kinds, kinds, expected.test.rows, False) if kinds else []
    return _make(names, originals, expected, request, folder, say)


def _without_losers(reports: Sequence[ArtifactReport]) -> tuple[ArtifactReport, ...]:
    """Marks verified artifacts that are better than the simpler ones in nothing as dropped."""
    verified = [report for report in reports if report.refusal is None]
    reasons = dict(zip(map(id, verified), drop_reasons(verified), strict=True))
    return tuple(
        report.model_copy(update={"dropped": reasons.get(id(report))}) for report in reports
    )


def _report(
    request: ImportRequest,
    original: Original,
    expected: Reference,
    artifacts: tuple[ArtifactReport, ...],
) -> Report:
    metric = expected.metric.measured(
        expected.test_outputs[expected.signature.outputs[0].name], expected.test.labels
    )
    size_bytes = original.file.stat().st_size
    return Report(
        run=original.source,
        model=request.model,
        epochs=0,
        best_epoch=0,
        metrics={} if metric is None else {f"test/{metric.name}": metric.value},
        checkpoint=CheckpointReport(size_bytes=size_bytes, metric=metric, latency_ms={}),
        artifacts=artifacts,
    )


def _draft(
    report: Report,
    request: ImportRequest,
    original: Original,
    expected: Reference,
    folder: Path,
) -> Draft:
    """Writes the files of the version that are still missing. Returns its draft."""
    (folder / REPORT).write_bytes(report.to_json())
    (folder / REPORT_PAGE).write_text(report_page(report), encoding="utf-8")
    advice = (
        "give gates if these differences are acceptable, which they are not if the model branches "
        "on values or sizes in Python; or choose other artifacts"
    )
    reasons = [str(one.refusal) for one in report.artifacts]
    if any(reason.startswith("does not run") for reason in reasons):
        advice = (
            "artifacts run at sizes between those of the examples, too: give examples of one size, "
            "or dynamic with sizes that the model takes"
        )
    elif all(reason.startswith("export failed") for reason in reasons):
        advice = "remove the cause, or choose other artifacts"
    check_any_verified(report, f"no artifact of '{report.model}' matches {report.run}", advice)
    (folder / IMPORT).write_text(request.model_dump_json(indent=2) + "\n", encoding="utf-8")
    golden = GoldenRows(expected.golden_inputs, expected.golden_outputs)
    (folder / GOLDEN).write_bytes(golden.to_bytes())
    artifacts = tuple(artifact_of(proven, folder) for proven in report.published())
    text = triton_config(request.model, artifacts, expected.signature)
    files = [REPORT, REPORT_PAGE, IMPORT, *write_triton_config(folder, text)]
    for path in original.side_files:
        shutil.copyfile(path, folder / path.name)
        files.append(path.name)
    return Draft(
        model=request.model,
        signature=expected.signature,
        artifacts=artifacts,
        golden=Golden(file=file_entry(folder, GOLDEN), rows=golden.rows),
        lineage=Lineage(
            recipe_sha256=hashlib.sha256((folder / IMPORT).read_bytes()).hexdigest(),
            data_sha256=_digest(folder / GOLDEN),
            imported_from=original.source,
            git_commit=git_commit(),
            library_versions={"python": platform.python_version(), **library_versions(LIBRARIES)},
            metrics=report.metrics,
            network_sha256=_digest(original.file),
        ),
        metadata=request.metadata,
        files=tuple(file_entry(folder, name) for name in files),
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
