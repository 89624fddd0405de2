"""The report of a run: all metrics, as JSON for programs and as a table for people."""

from pydantic import Field
from rich.console import Console
from rich.table import Table

from flambeau.protocol.strict import StrictModel
from model_store.artifact_kinds import ArtifactKind
from model_store.gate_figures import GateValues, shares_text
from model_store.manifest import MadeWith, Precision, speed_key
from model_store.metric import MeasuredMetric, figure_texts, metric_text
from model_store.tolerance import Tolerance
from training.metrics.guess import Guess
from training.reporting.curves import PhaseCurves
from training.reporting.examination import Examination
from training.reporting.fitting_columns import fitting_columns

LATENCY_COLUMNS = (1, 8, 32)
"""Batch sizes in the table."""
WIDTH_WITHOUT_TERMINAL = 160
"""Width of the table in a file or a pipe, where rich would use 80."""


class CheckpointReport(StrictModel):
    """The trained model itself, run by torch."""

    size_bytes: int
    metric: MeasuredMetric | None
    """Metric of the task over the test split; None for a model without labels."""
    latency_ms: dict[int, float]
    """Median milliseconds of one run, by batch size, on one thread."""


class ArtifactReport(StrictModel):
    """One artifact, verified or refused. Values are None if it could not be run."""

    name: str
    kind: ArtifactKind
    precision: Precision
    method: str | None = None
    """Method of making it, as named in the recipe: `static`, `dynamic`."""
    file: str
    weights_file: str | None = None
    """Second file, for kinds that have two."""
    made_with: MadeWith = MadeWith()
    tolerance: Tolerance
    refusal: str | None
    """Reason why it may not be published; None if it is verified."""
    mixes_rows: bool = False
    """True if it was refused and the checkpoint's own answers also depend on the batch."""
    dropped: str | None = None
    """Reason why `export: auto` does not publish it although it is verified."""
    departs_at: str | None = None
    """First layer that deviates from the checkpoint, if it was refused and the layer was found."""
    size_bytes: int | None = None
    max_abs_difference: float | None = None
    """From the checkpoint's outputs; None also if a shape differs or a number is missing."""
    agreement: float | None = None
    """Share of rows, 0 to 1, with the checkpoint's top class; None also if there are none."""
    cosine: float | None = None
    """Least cosine of any embedding with the checkpoint's; None if the model has none."""
    gates: GateValues = Field(default={})
    """Figures of outputs that have gates, by output and measure."""
    max_probability_shift: float | None = None
    """Largest change of the probability of any class, 0 to 1."""
    metric: MeasuredMetric | None = None
    """Metric of the task over the test split."""
    latency_ms: dict[int, float] = Field(default={})
    """Median milliseconds of one run, by batch size, on one thread."""
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    """Largest memory growth of a process, after its libraries are loaded, to open it and run all
    golden rows at once."""
    took_s: float | None = None
    """Seconds for making and verifying it, if they counted against a budget."""


class NotTried(StrictModel):
    """An export method that `export: auto` knows and did not try."""

    name: str
    method: str | None = None
    reason: str


class AutoReport(StrictModel):
    """The budget of `export: auto` and the untried methods."""

    budget_s: float
    spent_s: float
    not_tried: tuple[NotTried, ...]


class LiveComparison(StrictModel):
    """Comparison with the version that `production` named, on the new version's test rows."""

    condition: str
    """Condition of the recipe: `test/accuracy >= live`."""
    version: int | None
    """The live version; None if nothing was live."""
    artifact: str | None = None
    """Name of its artifact that was run."""
    new: float | None
    """Metric of the new version's checkpoint."""
    live: float | None = None
    """Metric of the live version; None if it was not compared."""
    new_interval: tuple[float, float] | None = None
    """95 % confidence interval of the new metric; only for accuracies."""
    live_interval: tuple[float, float] | None = None
    """95 % confidence interval of the live metric; only for accuracies."""
    difference_interval: tuple[float, float] | None = None
    """95 % confidence interval of the paired difference, new minus live."""
    met: bool
    """True if the alias may move."""
    refusal: str | None = None
    """Reason why there is no comparison although a version is live."""

    def text(self) -> str:
        """Returns the result in one line."""
        if self.version is None:
            return "nothing is live yet"
        if self.refusal is not None:
            return f"live version {self.version} was not compared: {self.refusal}"
        assert self.new is not None, "both were compared"
        assert self.live is not None, "both were compared"
        new, live = figure_texts(self.condition.partition(" ")[0], self.new, self.live)
        text = (
            f"{self.condition} is {'met' if self.met else 'not met'}: {new} against {live} of "
            f"version {self.version} ({self.artifact})"
        )
        if self.difference_interval is None:
            return text
        low, high = (100 * bound for bound in self.difference_interval)
        return f"{text}; the difference is {low:+.2f} to {high:+.2f} points with 95 % confidence"


class Report(StrictModel):
    """One run: the trained model and the verdict on every artifact."""

    run: str
    """Name of the recipe."""
    model: str
    """Name of the model in the store."""
    epochs: int
    best_epoch: int
    metrics: dict[str, float]
    """Metrics of the checkpoint, such as `test/accuracy`."""
    checkpoint: CheckpointReport
    artifacts: tuple[ArtifactReport, ...]
    auto: AutoReport | None = None
    """None if the recipe lists its exports."""
    guess: Guess | None = None
    """The best constant answer, and the model beside it; None in older reports."""
    comparison: LiveComparison | None = None
    """None if the recipe's `publish.if` compares nothing."""
    curves: tuple[PhaseCurves, ...] = ()
    """Curves of each phase; none in older reports, and without the tracker `jsonl`."""
    examination: Examination | None = None
    """Analysis of the answers to the test split; None in older reports."""

    def verified(self) -> list[ArtifactReport]:
        """Returns the verified artifacts in the order they were made."""
        return [artifact for artifact in self.artifacts if artifact.refusal is None]

    def published(self) -> list[ArtifactReport]:
        """Returns the published artifacts: all verified ones that `export: auto` did not drop."""
        return [artifact for artifact in self.verified() if artifact.dropped is None]

    def fastest(self) -> ArtifactReport | None:
        """Returns the published artifact with the fewest ms per row at its best batch size."""
        return min(self.published(), key=lambda a: speed_key(a.name, a.latency_ms), default=None)

    def label(self, artifact: ArtifactReport) -> str:
        """Returns an artifact's name, with its method if another one has the same name."""
        names = [other.name for other in self.artifacts]
        alone = artifact.method is None or names.count(artifact.name) == 1
        return artifact.name if alone else f"{artifact.name} {artifact.method}"

    def to_json(self) -> bytes:
        """Returns the bytes of report.json."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def print_table(report: Report, console: Console) -> None:
    """Prints the metrics of the checkpoint and of every artifact, with the verdict.

    On a narrow terminal the less important columns are left out and listed below the table.
    """
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH_WITHOUT_TERMINAL)
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = headings(report)
    rows = [checkpoint_cells(report), *(artifact_cells(report, a) for a in report.artifacts)]
    optional = ("batch 8", "memory", "agreement", "size", "batch 32", "parity")
    shown = fitting_columns(names, rows, console.width, optional)
    first, *figures, last = [names[place] for place in shown]
    table.add_column(first, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    console.print(table)
    if left_out := [name for place, name in enumerate(names) if place not in shown]:
        console.print(f"too narrow for: {', '.join(left_out)}; the report has all", highlight=False)


def headings(report: Report) -> list[str]:
    """Returns the column headings."""
    metric = "metric" if report.checkpoint.metric is None else report.checkpoint.metric.name
    batches = [f"batch {rows}" for rows in LATENCY_COLUMNS]
    return ["artifact", "parity", "agreement", metric, "size", "memory", *batches, "verdict"]


def checkpoint_cells(report: Report) -> list[str]:
    """Returns the checkpoint's row of the table."""
    checkpoint = report.checkpoint
    return [
        "checkpoint",
        "-",
        "-",
        "-" if checkpoint.metric is None else checkpoint.metric.text(),
        _kilobytes(checkpoint.size_bytes),
        "-",
        *latency_cells(checkpoint.latency_ms),
        "reference",
    ]


def artifact_cells(report: Report, artifact: ArtifactReport) -> list[str]:
    """Returns an artifact's row of the table."""
    return [
        report.label(artifact),
        parity_text(artifact),
        agreement_text(artifact),
        "-" if artifact.metric is None else artifact.metric.text(),
        _kilobytes(artifact.size_bytes),
        megabytes(artifact.peak_memory_bytes),
        *latency_cells(artifact.latency_ms),
        verdict(artifact, report.fastest()),
    ]


def verdict(artifact: ArtifactReport, fastest: ArtifactReport | None = None) -> str:
    """Describes the verdict on an artifact.

    Args:
        artifact: artifact that was verified or refused.
        fastest: fastest published artifact, if it is known.
    """
    if artifact.refusal is not None:
        return f"refused: {artifact.refusal}"
    if artifact.dropped is not None:
        return f"dropped: {artifact.dropped}"
    return "verified, fastest" if artifact is fastest else "verified"


def parity_text(artifact: ArtifactReport) -> str:
    """Formats the largest difference from the checkpoint's outputs; `-` if there is none."""
    if artifact.max_abs_difference is None:
        return "-"
    return f"{artifact.max_abs_difference:.1e}" if artifact.max_abs_difference else "0"


def agreement_text(artifact: ArtifactReport) -> str:
    """Formats the share of rows with the same top class, the cosine, or the figures of gates."""
    cosine = "" if artifact.cosine is None else f"cos {artifact.cosine:.4f}"
    cosine = cosine or shares_text(artifact.gates)
    if artifact.agreement is None:
        return cosine or "-"
    return ", ".join(filter(None, [percent(artifact.agreement), cosine]))


def percent(share: float | None) -> str:
    """Formats 0.986 as `98.6 %`, and None as `-`."""
    return metric_text("accuracy", share)


def _kilobytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1000:,.0f} KB"


def megabytes(memory_bytes: int | None) -> str:
    """Formats bytes as `10.8 MB`, in steps of 1000, and None as `-`."""
    return "-" if memory_bytes is None else f"{memory_bytes / 1e6:,.1f} MB"


def latency_cells(latency_ms: dict[int, float]) -> list[str]:
    """Formats the milliseconds of the batch sizes in the table."""
    found = [latency_ms.get(rows) for rows in LATENCY_COLUMNS]
    return ["-" if ms is None else f"{ms:.3f} ms" if ms < 1 else f"{ms:,.1f} ms" for ms in found]
