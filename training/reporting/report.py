"""The report of a run: every figure, as JSON for machines and as a table for people."""

from pydantic import Field
from rich.console import Console
from rich.table import Table

from model_store.manifest import ArtifactKind, MadeWith, Precision, speed_key
from model_store.metric import MeasuredMetric, figure_texts, metric_text
from model_store.strict import StrictModel
from model_store.tolerance import Tolerance
from training.metrics.guess import Guess
from training.reporting.curves import PhaseCurves
from training.reporting.examination import Examination
from training.reporting.fitting_columns import fitting_columns

LATENCY_COLUMNS = (1, 8, 32)
"""Batch sizes that the table shows."""
WIDTH_WITHOUT_TERMINAL = 160
"""Columns of the table in a file or a pipe, where rich would cut it at 80."""


class CheckpointReport(StrictModel):
    """The trained model itself, run by torch."""

    size_bytes: int
    metric: MeasuredMetric
    """What judges it, over the test split."""
    latency_ms: dict[int, float]
    """Median milliseconds of one run, by batch size, on one thread."""


class ArtifactReport(StrictModel):
    """One artifact, proven or refused. Figures are None where it could not be run."""

    name: str
    kind: ArtifactKind
    precision: Precision
    method: str | None = None
    """Which of several ways it was made, as the recipe names them: `static`, `dynamic`."""
    file: str
    weights_file: str | None = None
    """Its second file, for kinds that have two."""
    made_with: MadeWith = MadeWith()
    tolerance: Tolerance
    refusal: str | None
    """Why it may not be published; None if it is proven."""
    mixes_rows: bool = False
    """Whether it was refused and the checkpoint's own answer to a row depends on its batch."""
    dropped: str | None = None
    """Why `export: auto` does not publish it although it is proven."""
    departs_at: str | None = None
    """The layer where it departs from the checkpoint, if it was refused and that could be told."""
    size_bytes: int | None = None
    max_abs_difference: float | None = None
    """From the checkpoint's outputs; None also where a shape differs or a number is missing."""
    agreement: float | None = None
    """Share of rows, 0 to 1, with the checkpoint's top class; None also where there are none."""
    cosine: float | None = None
    """Least likeness of any embedding to the checkpoint's; None where the model has none."""
    max_probability_shift: float | None = None
    """Largest change of the probability of any class, 0 to 1."""
    metric: MeasuredMetric | None = None
    """What judges it, over the test split."""
    latency_ms: dict[int, float] = Field(default={})
    """Median milliseconds of one run, by batch size, on one thread."""
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    """What a process with its libraries grows by at most to open it and run all golden rows at
    once."""
    took_s: float | None = None
    """Seconds that making and proving it took, where they counted against a budget."""


class NotTried(StrictModel):
    """A way to export that `export: auto` knows and did not try."""

    name: str
    method: str | None = None
    reason: str


class AutoReport(StrictModel):
    """What `export: auto` did beside the artifacts."""

    budget_s: float
    spent_s: float
    not_tried: tuple[NotTried, ...]


class LiveComparison(StrictModel):
    """The new version against the one that `production` named, on the new version's test rows."""

    condition: str
    """As the recipe has it: `test/accuracy >= live`."""
    version: int | None
    """The live version; None where nothing was live."""
    artifact: str | None = None
    """Which of its artifacts was run."""
    new: float | None
    """The metric of the new version's checkpoint."""
    live: float | None = None
    """That of the live version; None where it was not compared."""
    new_interval: tuple[float, float] | None = None
    """Where the true value lies, with 95 % confidence; of accuracies only."""
    live_interval: tuple[float, float] | None = None
    """The same of the live version."""
    difference_interval: tuple[float, float] | None = None
    """Where the true difference lies, new less live, row by row, with 95 % confidence."""
    met: bool
    """Whether the alias may move."""
    refusal: str | None = None
    """Why there is no comparison, where something is live."""

    def text(self) -> str:
        """The finding in one line."""
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
    """One run: what was trained, and what became of every artifact."""

    run: str
    """Name of the recipe."""
    model: str
    """Name of the model in the store."""
    epochs: int
    best_epoch: int
    metrics: dict[str, float]
    """The checkpoint's, such as `test/accuracy`."""
    checkpoint: CheckpointReport
    artifacts: tuple[ArtifactReport, ...]
    auto: AutoReport | None = None
    """None where the recipe lists its exports."""
    guess: Guess | None = None
    """The best single answer for every row, and the model beside it; None in older reports."""
    comparison: LiveComparison | None = None
    """None where the recipe's `publish.if` compares nothing."""
    curves: tuple[PhaseCurves, ...] = ()
    """How each phase went; none in older reports, and without the tracker `jsonl`."""
    examination: Examination | None = None
    """The checkpoint's answers to the test split; None in older reports."""

    def proven(self) -> list[ArtifactReport]:
        """What may be published, in the order it was made."""
        return [artifact for artifact in self.artifacts if artifact.refusal is None]

    def published(self) -> list[ArtifactReport]:
        """What is published: all that is proven, but for what `export: auto` dropped."""
        return [artifact for artifact in self.proven() if artifact.dropped is None]

    def fastest(self) -> ArtifactReport | None:
        """The published artifact with the fewest milliseconds a row at its best batch size."""
        return min(self.published(), key=lambda a: speed_key(a.name, a.latency_ms), default=None)

    def label(self, artifact: ArtifactReport) -> str:
        """An artifact's name, with its method where another one has the same name."""
        names = [other.name for other in self.artifacts]
        alone = artifact.method is None or names.count(artifact.name) == 1
        return artifact.name if alone else f"{artifact.name} {artifact.method}"

    def to_json(self) -> bytes:
        """The bytes of report.json."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def print_table(report: Report, console: Console) -> None:
    """Shows the figures of the checkpoint and of every artifact, with the verdict.

    On a narrow terminal the less important figures are left out, and it says which.
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
    """What stands above the cells of a row."""
    metric = report.checkpoint.metric.name
    batches = [f"batch {rows}" for rows in LATENCY_COLUMNS]
    return ["artifact", "parity", "agreement", metric, "size", "memory", *batches, "verdict"]


def checkpoint_cells(report: Report) -> list[str]:
    """The checkpoint's row of the table."""
    checkpoint = report.checkpoint
    return [
        "checkpoint",
        "-",
        "-",
        checkpoint.metric.text(),
        _kilobytes(checkpoint.size_bytes),
        "-",
        *latency_cells(checkpoint.latency_ms),
        "reference",
    ]


def artifact_cells(report: Report, artifact: ArtifactReport) -> list[str]:
    """An artifact's row of the table."""
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
    """What became of an artifact, in words.

    Args:
        artifact: proven or refused.
        fastest: of all that are published, where that is known already.
    """
    if artifact.refusal is not None:
        return f"refused: {artifact.refusal}"
    if artifact.dropped is not None:
        return f"dropped: {artifact.dropped}"
    return "proven, fastest" if artifact is fastest else "proven"


def parity_text(artifact: ArtifactReport) -> str:
    """The largest difference from the checkpoint's outputs; `-` where there is none."""
    if artifact.max_abs_difference is None:
        return "-"
    return f"{artifact.max_abs_difference:.1e}" if artifact.max_abs_difference else "0"


def agreement_text(artifact: ArtifactReport) -> str:
    """The share of rows with the checkpoint's top class, or the cosine of embeddings, or both."""
    cosine = "" if artifact.cosine is None else f"cos {artifact.cosine:.4f}"
    if artifact.agreement is None:
        return cosine or "-"
    return ", ".join(filter(None, [percent(artifact.agreement), cosine]))


def percent(share: float | None) -> str:
    """`98.6 %` for 0.986; `-` for None."""
    return metric_text("accuracy", share)


def _kilobytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1000:,.0f} KB"


def megabytes(memory_bytes: int | None) -> str:
    """`10.8 MB`, in steps of 1000; `-` for None."""
    return "-" if memory_bytes is None else f"{memory_bytes / 1e6:,.1f} MB"


def latency_cells(latency_ms: dict[int, float]) -> list[str]:
    """Milliseconds of the batch sizes that tables show."""
    found = [latency_ms.get(rows) for rows in LATENCY_COLUMNS]
    return ["-" if ms is None else f"{ms:.3f} ms" if ms < 1 else f"{ms:,.1f} ms" for ms in found]
