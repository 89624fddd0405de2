"""Formats models and versions for `flambeau models`.

In: manifests. Out: lines, and for `list` the same facts as plain data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flambeau.commands.text.gates import gate_lines, limits_cells
from flambeau.commands.text.tables import (
    UNKNOWN,
    columns,
    latency_text,
    metric_text,
    size_text,
)

if TYPE_CHECKING:
    from flambeau.protocol.signature import Signature, TensorSpec
    from model_store.manifest import Artifact, Manifest

PRODUCTION = "production"
METRIC = "accuracy"
SHOWN_LABELS = 10
"""Most class names that `show` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """One line of `flambeau models list`."""

    model: str
    versions: Sequence[int]
    aliases: dict[str, int] = field(default_factory=dict)
    """Version by alias."""
    version_shown: int | None = None
    """Version of the artifact below: the one in production, otherwise the newest."""
    semver_shown: str | None = None
    """Its semantic version, if it has one."""
    best_artifact: str | None = None
    """Fastest artifact, as measured at publication."""
    batch_size: int | None = None
    """Rows of the batch of `latency_ms`: the smallest batch that was measured."""
    latency_ms: float | None = None
    accuracy: float | None = None
    """Accuracy of that artifact over the test split, 0 to 1; None for other metrics."""
    metric: str | None = None
    """Metric of its task, such as `accuracy` or `rmse`."""
    metric_value: float | None = None
    own_steps: Sequence[str] = ()
    """Of a pipeline: the models that are code of its own, `PIPELINE.STEP`."""
    error: str | None = None
    """Reason if a manifest or a pointer cannot be read."""


def own_steps(manifest: "Manifest") -> list[str]:
    """Returns the models of a pipeline's own steps, which were published with it."""
    if manifest.pipeline is None:
        return []
    parts = [(step.name, step.part.model) for step in manifest.pipeline.graph.steps]
    return [model for step, model in parts if model == f"{manifest.model}.{step}"]


def without_steps(summaries: Sequence[ModelSummary]) -> list[ModelSummary]:
    """Returns the models that are no own steps of a pipeline among them, and have no alias."""
    steps = {model for summary in summaries for model in summary.own_steps}
    return [one for one in summaries if one.model not in steps or one.aliases or one.error]


def list_lines(summaries: Sequence[ModelSummary]) -> list[str]:
    """Returns the table of models; every alias in use has a column, under its own spelling."""
    others = sorted({alias for s in summaries for alias in s.aliases} - {PRODUCTION})
    aliases = [PRODUCTION, *others]
    header = ["MODEL", *aliases, "PUBLISHED", "SEMVER", "BEST ARTIFACT"]
    # One heading for all: if metrics differ, each cell names its own.
    alike = all(summary.metric in (None, METRIC) for summary in summaries)
    rows = [[*header, METRIC.upper() if alike else "METRIC"]]
    for summary in summaries:
        best = f"{summary.best_artifact} {latency_text(summary.latency_ms)}"
        rows.append(
            [
                summary.model,
                *(str(summary.aliases.get(alias, UNKNOWN)) for alias in aliases),
                _count_text(len(summary.versions)),
                summary.semver_shown or UNKNOWN,
                best if summary.best_artifact else UNKNOWN,
                _judged_text(summary, named=not alike),
            ]
        )
    return columns(rows)


def _count_text(versions: int) -> str:
    return f"{versions} version{'' if versions == 1 else 's'}"


def show_lines(manifest: "Manifest", aliases: Sequence[str]) -> list[str]:
    """Returns the details of one version."""
    named = f"  ({', '.join(aliases)})" if aliases else ""
    published = manifest.created_at.strftime("%Y-%m-%d %H:%M:%S %Z")
    return [
        f"{manifest.model} {manifest.version_text}{named}  published {published}",
        *("", f"signature, {_batch_text(manifest.signature)}"),
        *_signature_lines(manifest.signature),
        *_step_lines(manifest),
        *("", "lineage"),
        *_lineage_lines(manifest),
        *("", "files"),
        *columns(
            [[e.file, size_text(e.size_bytes), f"sha256 {e.sha256}"] for e in manifest.all_files()],
            indent="  ",
        ),
    ]


def _step_lines(manifest: "Manifest") -> list[str]:
    """Returns the artifacts, or the steps of a pipeline."""
    if manifest.pipeline is None:
        lines = _artifact_lines(manifest.artifacts_by_speed())
        return ["", "artifacts, fastest first", *lines]
    recorded = manifest.pipeline.recorded_with
    rows = [["STEP", "MODEL", "RECORDED WITH", "FOR EACH", "WHERE"]]
    rows += [
        [s.name, s.model, recorded[s.model], s.for_each or UNKNOWN, s.where or UNKNOWN]
        for s in manifest.pipeline.graph.in_order()
    ]
    return ["", "steps", *columns(rows, indent="  ")]


def _judged_text(summary: ModelSummary, named: bool) -> str:
    text = metric_text(summary.metric or METRIC, summary.metric_value)
    return f"{summary.metric} {text}" if named and summary.metric else text


def _batch_text(signature: "Signature") -> str:
    if not signature.has_batch:
        return "one request at a time"
    return f"up to {signature.max_batch_size} rows a batch"


def _signature_lines(signature: "Signature") -> list[str]:
    tensors = [("input", spec) for spec in signature.inputs]
    tensors += [("output", spec) for spec in signature.outputs]
    return columns(
        [
            [
                what,
                spec.name,
                spec.datatype,
                _shape_text(spec, signature) + _axis_text(spec, signature),
                _labels_text(spec, signature),
            ]
            for what, spec in tensors
        ],
        indent="  ",
    )


def _axis_text(spec: "TensorSpec", signature: "Signature") -> str:
    """Formats what is unusual about a tensor: batch axis, use in a sequence, whether optional."""
    words = [] if spec.batch_axis == 0 or not signature.has_batch else [f"batch {spec.batch_axis}"]
    if spec.batch_axis is None and signature.has_batch:
        words = ["no batch"]
    sequence = signature.sequence
    if sequence is not None and spec.name in (*sequence.states, *sequence.outputs):
        words.append("state of a sequence")
    elif sequence is not None and spec.name in sequence.inputs:
        words.append("control of a sequence")
    return "".join(f", {word}" for word in [*words, *["optional"] * spec.optional])


def _shape_text(spec: "TensorSpec", signature: "Signature") -> str:
    """Formats `[-1,1,8..32,4..]`: axes with limits show both, or the smallest."""
    limits = signature.limits.get(spec.name, {}) | signature.dynamic.get(spec.name, {})
    sizes = (
        "..".join("" if limit is None else str(limit) for limit in limits.get(axis, (size,)))
        for axis, size in enumerate(spec.shape)
    )
    return f"[{','.join(sizes)}]"


def _labels_text(spec: "TensorSpec", signature: "Signature") -> str:
    labels = signature.labels.get(spec.name, ())
    more = f", and {len(labels) - SHOWN_LABELS} more" if len(labels) > SHOWN_LABELS else ""
    return ", ".join(labels[:SHOWN_LABELS]) + more


def _artifact_lines(artifacts: Sequence["Artifact"]) -> list[str]:
    batches = sorted({rows for artifact in artifacts for rows in artifact.latency_ms})
    metrics = sorted({name for artifact in artifacts for name in artifact.verification.metrics})
    names = ["NAME", "KIND", "PRECISION", "SIZE", "DIFFERENCE", "ALLOWED", "AGREEMENT", "AT LEAST"]
    rows = [
        [*names, *(m.upper() for m in metrics), *(f"BATCH {size}" for size in batches), "MEMORY"]
    ]
    for artifact in artifacts:
        proof, memory = artifact.verification, artifact.peak_memory_bytes
        rows.append(
            [
                *(artifact.name, artifact.kind, artifact.precision),
                size_text(artifact.file.size_bytes),
                f"{proof.max_abs_difference:.2g}",
                *limits_cells(proof.tolerance, proof.agreement),
                *(metric_text(name, proof.metrics.get(name)) for name in metrics),
                *(latency_text(artifact.latency_ms.get(size)) for size in batches),
                UNKNOWN if memory is None else size_text(memory),
            ]
        )
    proofs = [(one.name, one.verification) for one in artifacts]
    gates = [(name, proof.tolerance, proof.gates) for name, proof in proofs]
    return [*columns(rows, indent="  "), *gate_lines(gates, indent="  ")]


def _lineage_lines(manifest: "Manifest") -> list[str]:
    lineage, weights = manifest.lineage, manifest.lineage.weights
    libraries = [f"{name} {version}" for name, version in sorted(lineage.library_versions.items())]
    metrics = [f"{name} {value:.4g}" for name, value in sorted(lineage.metrics.items())]
    return columns(
        [
            ["recipe", f"sha256 {lineage.recipe_sha256}"],
            ["data", f"sha256 {lineage.data_sha256}"],
            ["git commit", lineage.git_commit or UNKNOWN],
            *([] if lineage.parent is None else [["began with", lineage.parent.words]]),
            *([] if weights is None else [["weights", f"{weights.path}, sha256 {weights.sha256}"]]),
            ["libraries", ", ".join(libraries) or UNKNOWN],
            ["metrics", ", ".join(metrics) or UNKNOWN],
        ],
        indent="  ",
    )
