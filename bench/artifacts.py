"""`make artifacts-table`: every family of networks in every kind and precision there is.

Each family's recipe is trained, exported in every way, and every artifact held to the checkpoint,
as `flambeau train` does it; nothing is published. A table that was interrupted goes on with the
family it was at. Prints verdicts and writes `docs/artifacts.md` and `bench/results/artifacts.json`.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from bench.figures.performance_page import with_block
from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict
from bench.peers.flambeau_peer import ROOT
from training.datasets import load_splits
from training.pipeline import run
from training.publish import RECIPE, REPORT
from training.recipe.file import load_recipe, resolved_yaml
from training.recipe.parts.export_entries import Export, QatEntry
from training.recipe.recipe import Recipe
from training.reporting.report import ArtifactReport, Report, print_table
from training.run_folder import RunFolder

PAGE = ROOT / "docs" / "artifacts.md"
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
"""Recipe files. The wide ones are of the same classes as the others, which are small so that tests
can train them: less than half of their time is arithmetic, so that 8 bits gain little there."""
TARGETS = {"wide CNN": 4.0, "wide Transformer": 2.0, "LSTM": 2.0}
"""How many times as fast as torch's eager FP32 the best artifact is to be, at `ROWS` rows."""
ROWS = 32
NOT_TRAINED = "not tried: the recipe has no `qat`, so nothing was trained for 8 bits"
MAX_DROP = 0.005
"""Of accuracy, for the best artifact: half a percentage point."""


def main() -> None:
    """Trains, exports, proves, prints, and writes."""
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
    """The recipe with every kind in every precision; what it says of one itself stays.

    What is trained for 8 bits is left out of a recipe that does not train for them.
    """
    listed = recipe.listed_exports()
    own: Mapping[str, Export] = {entry.name: entry for entry in listed}
    # What is trained for 8 bits has a tolerance of another kind than what is rounded to them.
    tolerances: dict[type, Any] = {type(entry.tolerance): entry.tolerance for entry in listed}
    entries = []
    for entry in _all_entries():
        kind = type(entry)
        if isinstance(entry, QatEntry) and recipe.qat is None:
            continue
        if entry.name in own:
            entry = own[entry.name]
        elif type(entry.tolerance) in tolerances:
            entry = kind(tolerance=tolerances[type(entry.tolerance)])
        entries.append(entry)
    return recipe.model_copy(update={"export": tuple(entries)})


def _all_entries() -> list[Export]:
    """One of each kind and precision, as it is without settings."""
    return [get_args(annotated)[0]() for annotated in get_args(get_args(Export)[0])]


def _report(family: str, runs_dir: Path, again: bool) -> Report:
    """Of a run, or of the last one if nothing of its recipe and data has changed."""
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
    """Whether a finished run left this very recipe there."""
    return path.exists() and path.read_text(encoding="utf-8") == resolved_yaml(recipe)


def speedup(report: Report, artifact: ArtifactReport) -> float:
    """How many times as fast as the checkpoint an artifact runs, at `ROWS` rows."""
    rows = max(rows for rows in report.checkpoint.latency_ms if rows <= ROWS)
    return report.checkpoint.latency_ms[rows] / artifact.latency_ms[rows]


def best(report: Report) -> ArtifactReport | None:
    """The fastest proven artifact that is as accurate as the checkpoint, but for `MAX_DROP`."""
    floor = report.checkpoint.metric.value - MAX_DROP
    fitting = [a for a in report.proven() if a.metric is not None and a.metric.value >= floor]
    return max(fitting, key=lambda artifact: speedup(report, artifact), default=None)


def verdicts(reports: Mapping[str, Report]) -> list[Verdict]:
    """The best artifact of the families that have a target."""
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
    """The summary of all families, then each with its figures and the reason for every hole."""
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
    low, high = report.checkpoint.metric.interval or (0.0, 1.0)
    lines = [
        f"## {family}",
        "",
        f"Recipe `{FAMILIES[family]}`. The checkpoint: "
        f"{report.checkpoint.metric.value:.1%} of the test labels (95 % interval {low:.1%} to "
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
    reason = "proven" if artifact.refusal is None else artifact.refusal.replace("|", "\\|")
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
