"""`make artifacts-table`: every family of networks in every export kind and precision.

Trains each family's recipe, exports it in every way, and verifies every artifact against the
checkpoint, as `flambeau train` does; publishes nothing. An interrupted table resumes at the family
it had reached. Prints verdicts and writes `docs/reference/artifacts.md` and
`bench/results/artifacts.json`.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.figures.performance_page import with_block
from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict
from bench.peers.servers.flambeau_peer import ROOT
from model_store.artifact_kinds import exported_kinds
from model_store.metric import MeasuredMetric
from training.datasets import load_splits
from training.pipeline import run
from training.publish import RECIPE, REPORT
from training.recipe.file import load_recipe, resolved_yaml
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export
from training.recipe.parts.export_entries import QatEntry
from training.recipe.recipe import Recipe
from training.reporting.report import ArtifactReport, Report, print_table
from training.run_folder import RunFolder

PAGE = ROOT / "docs/reference/artifacts.md"
RUNS = ROOT / "var" / "artifacts" / "runs"
FAMILIES = {
    "MLP": "training/recipes/breast_cancer_mlp.yaml",
    "CNN": "training/recipes/digits_residual_cnn.yaml",
    "wide CNN": "bench/recipes/wide/digits_cnn.yaml",
    "LSTM": "training/recipes/digits_lstm.yaml",
    "Transformer": "training/recipes/digits_encoder.yaml",
    "wide Transformer": "bench/recipes/wide/digits_encoder.yaml",
    "seq2seq": "training/recipes/numbers_seq2seq.yaml",
    "own backward": "training/recipes/digits_swish.yaml",
    "control flow": "training/recipes/digits_early_exit.yaml",
}
"""Recipe files. The wide ones have the same classes as the others. The others are small so that
tests can train them: arithmetic is less than half of their time, so 8 bits gain little there."""
TARGETS = {"wide CNN": 4.0, "wide Transformer": 2.0, "LSTM": 2.0}
"""Target speedup of the best artifact over torch's eager FP32, at `ROWS` rows."""
ROWS = 32
NOT_TRAINED = "not tried: the recipe has no `qat`, so nothing was trained for 8 bits"
MAX_DROP = 0.005
"""Largest accuracy loss of the best artifact: half a percentage point."""


def main() -> None:
    """Trains, exports, verifies, prints, and writes."""
    parser = argparse.ArgumentParser(prog="python -m bench.artifacts", description=__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one")
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--runs-dir", type=Path, default=RUNS, help="folder of the checkpoints")
    given = parser.parse_args()
    reports = {}
    for family in given.family or FAMILIES:
        print(f"\n{family}", flush=True)
        reports[family] = _report(family, given.runs_dir, given.again)
    if not given.family:
        PAGE.write_text(with_block(PAGE.read_text(), "artifacts", page_block(reports)))
        print(f"wrote {PAGE}")
    document = {family: report.model_dump(mode="json") for family, report in reports.items()}
    write_results("artifacts", document, verdicts(reports))


def every_export(recipe: Recipe) -> Recipe:
    """Returns the recipe with every kind in every precision; its own export settings are kept.

    Quantisation-aware exports are left out of a recipe that does not train for 8 bits.
    """
    listed = recipe.listed_exports()
    own: Mapping[str, Export] = {entry.name: entry for entry in listed}
    # Quantisation-aware exports have another kind of tolerance than exports rounded to 8 bits.
    tolerances: dict[type, Any] = {type(entry.tolerance): entry.tolerance for entry in listed}
    entries = []
    for entry in _all_entries():
        kind = type(entry)
        if isinstance(entry, QatEntry) and recipe.qat is None:
            continue
        if entry.name in own:
            entry = own[entry.name]
        elif type(entry.tolerance) in tolerances:
            entry = kind.model_validate({"tolerance": tolerances[type(entry.tolerance)]})
        entries.append(entry)
    return recipe.model_copy(update={"export": tuple(entries)})


def _all_entries() -> list[Export]:
    """Returns one export of each kind and precision, with default settings."""
    entries = (entry for name in exported_kinds() for entry in EXPORT_KINDS[name].entries)
    return [entry.model_validate({}) for entry in entries]


def _report(family: str, runs_dir: Path, again: bool) -> Report:
    """Returns the report of a new run, or of the last one if its recipe and data are unchanged."""
    recipe = every_export(load_recipe(str(ROOT / FAMILIES[family])))
    files = RunFolder(runs_dir, recipe, load_splits(recipe).sha256()).version
    if again or not _is_of(recipe, files / RECIPE):
        with tempfile.TemporaryDirectory(prefix="artifacts-") as store:
            run(recipe, store, runs_dir, resume=True, console=Console())
        return Report.model_validate_json((files / REPORT).read_bytes())
    report = Report.model_validate_json((files / REPORT).read_bytes())
    print_table(report, Console())
    return report


def _is_of(recipe: Recipe, path: Path) -> bool:
    """Returns True if a finished run of this exact recipe lies at the path."""
    return path.exists() and path.read_text(encoding="utf-8") == resolved_yaml(recipe)


def speedup(report: Report, artifact: ArtifactReport) -> float:
    """Returns an artifact's speed over the checkpoint's, at `ROWS` rows."""
    rows = max(rows for rows in report.checkpoint.latency_ms if rows <= ROWS)
    return report.checkpoint.latency_ms[rows] / artifact.latency_ms[rows]


def _checkpoint_metric(report: Report) -> MeasuredMetric:
    assert report.checkpoint.metric is not None, "a recipe's model has labels"
    return report.checkpoint.metric


def best(report: Report) -> ArtifactReport | None:
    """Returns the fastest verified artifact whose accuracy loss is within `MAX_DROP`."""
    floor = _checkpoint_metric(report).value - MAX_DROP
    fitting = [a for a in report.verified() if a.metric is not None and a.metric.value >= floor]
    return max(fitting, key=lambda artifact: speedup(report, artifact), default=None)


def verdicts(reports: Mapping[str, Report]) -> list[Verdict]:
    """Returns the verdict on the best artifact of each family that has a target."""
    found = []
    for family, target in TARGETS.items():
        if family not in reports:
            continue
        report = reports[family]
        fastest = best(report)
        found.append(
            Verdict(
                what=f"{family}, {fastest.name if fastest else 'nothing'}: times as fast as eager "
                f"FP32, {ROWS} rows, one thread",
                value=speedup(report, fastest) if fastest else 0.0,
                bound="at least",
                target=target,
            )
        )
    return found


def page_block(reports: Mapping[str, Report]) -> str:
    """Renders the summary of all families, then each family's figures and reasons for gaps."""
    names = [entry.name for entry in _all_entries()]
    lines = [_row(["", *reports]), _row(["---"] * (len(reports) + 1))]
    for name in names:
        lines.append(_row([f"`{name}`", *(_cell(report, name) for report in reports.values())]))
    for family, report in reports.items():
        lines += ["", *_family(family, report)]
    return "\n".join(lines)


def _cell(report: Report, name: str) -> str:
    artifact = _find(report, name)
    if artifact is None or artifact.refusal is not None:
        return "-"
    return f"{speedup(report, artifact):.1f}"


def _find(report: Report, name: str) -> ArtifactReport | None:
    return next((one for one in report.artifacts if one.name == name), None)


def _family(family: str, report: Report) -> list[str]:
    metric = _checkpoint_metric(report)
    low, high = metric.interval or (0.0, 1.0)
    lines = [
        f"## {family[0].upper()}{family[1:]}",
        "",
        f"Recipe `{FAMILIES[family]}`. The checkpoint: "
        f"{metric.value:.1%} of the test labels (95 % interval {low:.1%} to "
        f"{high:.1%}), {report.checkpoint.size_bytes / 1000:,.0f} KB.",
        "",
        _row(["artifact", "largest difference", "agreement", "accuracy", "KB", "times eager", ""]),
        _row(["---"] + ["---:"] * 5 + ["---"]),
    ]
    return lines + [_artifact_row(report, entry.name) for entry in _all_entries()]


def _artifact_row(report: Report, name: str) -> str:
    artifact = _find(report, name)
    if artifact is None:
        return _row([f"`{name}`", *["-"] * 5, NOT_TRAINED])
    reason = "verified" if artifact.refusal is None else artifact.refusal.replace("|", "\\|")
    if artifact.metric is None or artifact.agreement is None or artifact.size_bytes is None:
        return _row([f"`{artifact.name}`", *["-"] * 5, reason])
    difference = artifact.max_abs_difference
    figures = [
        "-" if difference is None else f"{difference:.1e}",
        f"{artifact.agreement:.1%}",
        f"{artifact.metric.value:.1%}",
        f"{artifact.size_bytes / 1000:,.0f}",
        f"{speedup(report, artifact):.1f}",
    ]
    return _row([f"`{artifact.name}`", *figures, reason])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
