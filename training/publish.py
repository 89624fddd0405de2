"""Publishes verified artifacts: writes the files of a version into the model store.

In: a report with at least one verified artifact, and the files. Out: a new version's manifest.

Rules: a version whose recipe asks for too small a `bump` is refused before its artifacts are
exported, and checked again, with all facts known, when it is published; every artifact is replayed
from the very files that are published.
"""

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

from flambeau.protocol.signature import Signature
from model_store.artifact_kinds import STORED_KINDS
from model_store.gate_figures import agreement_of
from model_store.golden import GoldenRows
from model_store.manifest import (
    Artifact,
    Draft,
    FileEntry,
    Golden,
    Lineage,
    Manifest,
    PythonStep,
    Verification,
)
from model_store.pipelines.parts import naming_pipelines
from model_store.semver import semver_index
from model_store.semver.compatibility import Identity
from model_store.store import ModelStore, Sign
from training.errors import NothingProvenError
from training.exporters.python_model import description_of
from training.exporters.triton_config import triton_config
from training.loading.splits import Splits
from training.loop.loop import Trained
from training.network.python_step import Step, served_signature
from training.process.library_versions import library_versions
from training.recipe.file import resolved_yaml
from training.recipe.recipe import Recipe
from training.reporting.report import ArtifactReport, Report
from training.reporting.report_page import report_page
from training.verification.final_replay import replay_files, with_step_rounding
from training.verification.verify import Reference

REPORT, REPORT_PAGE = "report.json", "report.html"
RECIPE, CHECKPOINT = "recipe.resolved.yaml", "checkpoint.safetensors"
QAT_CHECKPOINT = "checkpoint.qat.safetensors"
PYTHON_STEP = "preprocess.py"
GOLDEN, TRITON_CONFIG = "golden.safetensors", "config.pbtxt"
LIBRARIES = ("flambeau", "numpy", "onnx", "onnxruntime", "onnxscript", "scikit-learn", "torch")
"""Libraries whose versions are recorded with the model."""
GIT_TIMEOUT_SECONDS = 10


def check_bump(
    recipe: Recipe, raw: Splits, trained: Trained, store: ModelStore, step: Step | None
) -> None:
    """Refuses a run whose version may not have the semantic version that the recipe asks for.

    Args:
        recipe: the run.
        raw: the data as it was loaded, before any Python step.
        trained: the model.
        store: the model store, which has the earlier versions.
        step: the Python step, if there is one.

    Raises:
        BumpTooSmallError: its `publish.bump` is smaller than the change requires.
        StorageError: the store cannot be read.
    """
    if recipe.publish.bump is None:
        return
    signature = trained.signature
    identity = Identity(
        signature=signature if step is None else served_signature(signature, raw),
        weights={
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in _weights(trained).items()
        },
        network_sha256=recipe.network_digest(),
        python_step=None if step is None else _python_step(step, signature),
    )
    model = recipe.publish.model
    listing = store.listing(model).get(model)
    versions = listing.versions if listing else ()
    with naming_pipelines(store, model):
        semver_index.next_semver(store, model, identity, versions, recipe.publish.bump)


def publish(
    recipe: Recipe,
    splits: Splits,
    trained: Trained,
    expected: Reference,
    report: Report,
    folder: Path,
    store: ModelStore,
    sign: Sign | None = None,
    step: Step | None = None,
) -> Manifest:
    """Writes the files that are still missing in `folder`, and publishes the verified artifacts.

    Args:
        recipe: the run.
        splits: the data as it was loaded, before any Python step.
        trained: the model.
        expected: outputs of the checkpoint itself.
        report: the figures.
        folder: the artifacts' folder.
        store: the store that gets the version.
        sign: makes the signature; None leaves the version unsigned.
        step: the Python step that converts clients' inputs, if there is one.

    Raises:
        NothingProvenError: every artifact was refused, or one does not give the golden rows of the
            files; nothing is published.
        BumpTooSmallError: its `publish.bump` is smaller than the change requires.
        StoreError: the store failed, or no server would open a file, such as an ONNX file that
            needs other files or custom operators; nothing is published.
    """
    (folder / REPORT).write_bytes(report.to_json())
    (folder / REPORT_PAGE).write_text(report_page(report), encoding="utf-8")
    _check_any_proven(recipe.publish.model, report, folder / REPORT)
    (folder / RECIPE).write_text(resolved_yaml(recipe), encoding="utf-8")
    files = [REPORT, REPORT_PAGE, RECIPE, *_copy_weights(trained, folder)]
    golden = _write_golden(folder, splits, expected)
    signature = expected.signature
    if step is not None:
        (folder / PYTHON_STEP).write_bytes(step.source)
        signature = served_signature(signature, splits)
    artifacts = tuple(artifact_of(proven, folder) for proven in report.published())
    model = recipe.publish.model
    files += write_triton_config(folder, triton_config(model, artifacts, expected.signature))
    draft = Draft(
        model=model,
        signature=signature,
        artifacts=artifacts,
        golden=golden,
        python_step=None if step is None else _python_step(step, expected.signature),
        lineage=_lineage(recipe, folder / RECIPE, splits, report, trained),
        slo=recipe.publish.slo,
        files=tuple(file_entry(folder, name) for name in files),
    )
    if step is not None:
        draft = with_step_rounding(draft, folder, step, recipe.export_limits)
    replay_files(draft, folder, step, recipe.export_limits)
    return store.publish(draft, folder, sign=sign, bump=recipe.publish.bump)


def _copy_weights(trained: Trained, folder: Path) -> list[str]:
    """Copies the files of weights; returns their names."""
    weights = _weights(trained)
    for name, path in weights.items():
        shutil.copyfile(path, folder / name)
    return list(weights)


def _write_golden(folder: Path, splits: Splits, expected: Reference) -> Golden:
    rows = GoldenRows(splits.test.golden_inputs(), expected.golden_outputs)
    (folder / GOLDEN).write_bytes(rows.to_bytes())
    return Golden(file=file_entry(folder, GOLDEN), rows=rows.rows)


def _weights(trained: Trained) -> dict[str, Path]:
    """Returns the files of weights by their names in the version."""
    weights = {CHECKPOINT: trained.weights, QAT_CHECKPOINT: trained.qat_weights}
    return {name: path for name, path in weights.items() if path is not None}


def _check_any_proven(model: str, report: Report, figures: Path) -> None:
    """Refuses a report without a verified artifact; `figures` is the file that has it.

    Raises:
        NothingProvenError: every artifact was refused; the message has the reasons.
    """
    advice = "widen its tolerance in export if that is acceptable, or export another kind"
    if any(artifact.mixes_rows for artifact in report.artifacts):
        advice = "no tolerance and no other kind helps a network that mixes rows"
    failed = f"no artifact of '{model}' kept its tolerance, so nothing is published"
    check_any_verified(report, failed, f"{advice}; figures in {figures}")


def check_any_verified(report: Report, failed: str, advice: str) -> None:
    """Refuses a report without a verified artifact.

    Args:
        report: the report.
        failed: what to say if there is none, before the reason of each artifact.
        advice: what to do, after them.

    Raises:
        NothingProvenError: every artifact was refused.
    """
    if not report.published():
        reasons = "; ".join(f"{one.name}: {one.refusal}" for one in report.artifacts)
        raise NothingProvenError(f"{failed} ({reasons}); {advice}")


def file_entry(folder: Path, name: str) -> FileEntry:
    """Returns the manifest's entry for a file in the folder."""
    return _entry_of(name, (folder / name).read_bytes())


def _entry_of(name: str, data: bytes) -> FileEntry:
    return FileEntry(file=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def _python_step(step: Step, behind_it: Signature) -> PythonStep:
    return PythonStep(
        file=_entry_of(PYTHON_STEP, step.source),
        name=step.name,
        args=step.args,
        inputs=behind_it.inputs,
    )


def artifact_of(proven: ArtifactReport, folder: Path) -> Artifact:
    """Returns the manifest's entry for a verified artifact.

    Args:
        proven: its figures; without a metric for a model without labels.
        folder: the folder of its files.

    Raises:
        StoreError: no server would open its file.
    """
    assert proven.max_abs_difference is not None, "a proven artifact was measured"
    metric = proven.metric
    has_class = STORED_KINDS[proven.kind].has_class
    artifact = Artifact(
        name=proven.name,
        kind=proven.kind,
        precision=proven.precision,
        file=file_entry(folder, proven.file),
        weights=None if proven.weights_file is None else file_entry(folder, proven.weights_file),
        python=description_of(folder / proven.file) if has_class else None,
        made_with=proven.made_with,
        verification=Verification(
            max_abs_difference=proven.max_abs_difference,
            # Outputs without classes agree by definition.
            agreement=agreement_of(proven.gates) if proven.agreement is None else proven.agreement,
            max_probability_shift=proven.max_probability_shift or 0.0,
            cosine=proven.cosine,
            gates=proven.gates,
            metrics={} if metric is None else {metric.name: metric.value},
            judged_by=metric,
            tolerance=proven.tolerance,
        ),
        latency_ms=proven.latency_ms,
        peak_memory_bytes=proven.peak_memory_bytes,
    )
    artifact.check_file((folder / proven.file).read_bytes())
    return artifact


def write_triton_config(folder: Path, text: str) -> list[str]:
    """Writes the configuration, unless it is empty. Returns the names of the written files."""
    if text:
        (folder / TRITON_CONFIG).write_text(text, encoding="utf-8")
    return [TRITON_CONFIG] if text else []


def _lineage(
    recipe: Recipe, recipe_path: Path, splits: Splits, report: Report, trained: Trained
) -> Lineage:
    return Lineage(
        recipe_sha256=hashlib.sha256(recipe_path.read_bytes()).hexdigest(),
        data_sha256=splits.sha256(),
        data=splits.origin,
        git_commit=git_commit(),
        library_versions={"python": platform.python_version(), **library_versions(LIBRARIES)},
        metrics=report.metrics,
        network_sha256=recipe.network_digest(),
        parent=trained.parent,
        weights=trained.given,
    )


def git_commit() -> str | None:
    """Returns the commit of the working directory, with the recipe's code; None outside git."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        found = subprocess.run(  # noqa: S603 - a fixed command
            [git, "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
