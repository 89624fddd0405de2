"""`make train-table`: every family of networks trained, killed in mid-epoch, and resumed.

Each recipe of `training/recipes/` is trained on real data in a process of its own; then once more
in a process that gets SIGKILL in mid-epoch, after a checkpoint, and in a third one that resumes.
The final weights are compared with those of the uninterrupted run, by sha256, and the resumed
process must have made exactly the steps after the checkpoint: a restart would also end with equal
weights. Nothing is exported. An interrupted table resumes at the family it had reached, if neither
its recipe nor the code has changed. Prints the table and writes `docs/guides/training.md` and
`bench/results/train-table.json`; exits with 1 if weights differ or a run restarted.
"""

import argparse
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from bench.figures.performance_page import with_block
from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict, table
from bench.peers.servers.flambeau_peer import ROOT
from bench.training.one_training import Figures
from flambeau.protocol.strict import StrictModel
from model_store.metric import metric_text
from training.process.file_digest import file_sha256
from training.process.library_versions import library_versions
from training.recipe.file import load_recipe

NAME = "train-table"
PAGE = ROOT / "docs/guides/training.md"
RECIPES = ROOT / "training" / "recipes"
FOLDER = ROOT / "var" / NAME
FAMILIES = {
    "MLP": "breast_cancer_mlp",
    "MLP, regression": "diabetes_mlp",
    "CNN": "digits_cnn",
    "CNN, raw images": "digits_raw",
    "residual CNN": "digits_residual_cnn",
    "LSTM": "digits_lstm",
    "Transformer": "digits_encoder",
    "seq2seq": "numbers_seq2seq",
    "own backward": "digits_swish",
    "control flow": "digits_early_exit",
}
CODE = ("training", "model_store")
"""Folders with sources that affect the result of a training, and its resumption."""
LIBRARIES = ("torch", "numpy", "scikit-learn", "safetensors")
TIMEOUT_S = 3600
"""Timeout of one training: long, as other work may occupy many cores."""
HEAD = (
    *("family", "recipe", "metric", "value", "95 % interval", "epochs", "time", "CPU time"),
    *("steps per CPU second", "resumed-equal"),
)


class Row(StrictModel):
    """Results of one family."""

    recipe: str
    """Digest of the recipe parts that determine the weights; a change needs a new measurement."""
    code: str
    """Digest of the training code, see `code_digest`; a change needs a new measurement."""
    whole: Figures
    """Figures of the uninterrupted training."""
    killed: str
    """Description of the point where it was killed."""
    resumed_from: str
    """Name of the checkpoint's weights from which it resumed."""
    checkpoint_epochs: int
    """Epochs in this checkpoint."""
    checkpoint_steps: int
    """Steps after those epochs in this checkpoint."""
    resumed: Figures
    """Figures of the training that was killed and resumed."""

    @property
    def went_on(self) -> bool:
        """True if the resumed run made exactly the steps after its checkpoint."""
        found = self.resumed
        before = self.checkpoint_epochs * (found.steps // found.epochs) + self.checkpoint_steps
        return before > 0 and found.own_steps == found.steps - before

    @property
    def equal(self) -> bool:
        """True if it resumed, and both runs have equal weights, of the last epoch and the best."""
        found, expected = self.resumed, self.whole
        last, best = expected.last_sha256, expected.best_sha256
        return self.went_on and (found.last_sha256, found.best_sha256) == (last, best)


def main() -> None:
    """Trains, kills, resumes, prints and writes."""
    parser = argparse.ArgumentParser(prog="python -m bench.train_table", description=__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one")
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of checkpoints and results")
    given = parser.parse_args()
    families = given.family or list(FAMILIES)
    rows: dict[str, Row] = {}
    for place, family in enumerate(families, start=1):
        print(f"{place}/{len(families)} {family}", flush=True)
        rows[family] = _row(FAMILIES[family], given.folder, given.again)
        print(f"  {'  '.join(cells(family, rows[family])[2:])}", flush=True)
    print("\n" + table(HEAD, [cells(family, row) for family, row in rows.items()]))
    if not given.family:
        PAGE.write_text(with_block(PAGE.read_text(), NAME, page_block(rows)))
        print(f"wrote {PAGE}")
        figures = {family: row.model_dump(mode="json") for family, row in rows.items()}
        write_results(NAME, figures, verdicts(rows))
    if not all(row.equal for row in rows.values()):
        raise SystemExit(
            "a run that was killed began anew when it was resumed, or ended with other weights"
        )


def cells(family: str, row: Row) -> list[str]:
    """Returns the cells of a table row: see `HEAD`."""
    metric = row.whole.metric
    low, high = metric.interval or (metric.value, metric.value)
    return [
        family,
        FAMILIES[family],
        metric.name,
        metric.text(),
        f"{metric_text(metric.name, low)} to {metric_text(metric.name, high)}",
        str(row.whole.epochs),
        f"{row.whole.wall_s:.0f} s",
        f"{row.whole.cpu_s:.1f} s",
        f"{row.whole.steps / row.whole.cpu_s:.0f}",
        "yes" if row.equal else "NO",
    ]


def page_block(rows: Mapping[str, Row]) -> str:
    """Renders the table as Markdown."""
    lines = [HEAD, ["---"] * 3 + ["---:"] * 6 + ["---"]]
    lines += [cells(family, row) for family, row in rows.items()]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Returns the verdict that all families resume where they were killed."""
    equal = sum(row.equal for row in rows.values())
    what = "families that end with the same weights when killed in mid-epoch and resumed"
    return [Verdict(what=what, value=equal, bound="at least", target=len(rows))]


def code_digest(root: Path = ROOT) -> str:
    """Returns a digest of the training sources, and of the versions of their libraries."""
    digest = hashlib.sha256(json.dumps(library_versions(LIBRARIES)).encode())
    sources = [path for part in CODE for path in (root / part).rglob("*.py")]
    for path in sorted([*sources, root / "bench" / "training" / "one_training.py"]):
        digest.update(f"\n{path.relative_to(root)} {file_sha256(path)}".encode())
    return digest.hexdigest()


def kept_row(kept: Path, recipe: str, code: str) -> Row | None:
    """Returns the earlier result; None if there is none or its recipe or code differs.

    Args:
        kept: file with the result.
        recipe: digest of the recipe.
        code: digest of the code.
    """
    try:
        row = Row.model_validate_json(kept.read_bytes())
    except (FileNotFoundError, ValidationError):  # other code has other fields
        return None
    return row if (row.recipe, row.code) == (recipe, code) else None


def _row(name: str, folder: Path, again: bool) -> Row:
    """Measures a family, or returns its earlier result if recipe and code are unchanged."""
    path, kept = RECIPES / f"{name}.yaml", folder / f"{name}.json"
    recipe, code = load_recipe(str(path)).training_digest(), code_digest()
    if not again and (row := kept_row(kept, recipe, code)) is not None:
        return row
    whole, killed = folder / name / "whole", folder / name / "killed"
    shutil.rmtree(folder / name, ignore_errors=True)
    undisturbed = Figures.model_validate_json(_trained(path, whole))
    where = _trained(path, killed, "--kill", code=-signal.SIGKILL)
    mid_epoch = sorted(killed.glob("*/checkpoints/*-step-*.safetensors"))
    if not mid_epoch:
        raise SystemExit(f"{name}: no checkpoint in mid-epoch is left in {killed}")
    resumed_from = mid_epoch[-1].stem
    _, epochs, _, steps = resumed_from.split("-")  # epoch-000007-step-00000123
    resumed = Figures.model_validate_json(_trained(path, killed, "--resume"))
    row = Row(
        recipe=recipe,
        code=code,
        whole=undisturbed,
        killed=where,
        resumed_from=resumed_from,
        checkpoint_epochs=int(epochs),
        checkpoint_steps=int(steps),
        resumed=resumed,
    )
    kept.write_text(row.model_dump_json(indent=2))
    return row


def _trained(recipe: Path, folder: Path, *options: str, code: int = 0) -> str:
    """Returns the last line that a training printed, which ended as expected."""
    print(f"  training {' '.join(options)}".rstrip(), end=" ", flush=True)
    begun_s = time.monotonic()
    argv = [sys.executable, "-m", "bench.training.one_training", str(recipe), str(folder), *options]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != code:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}")
    last = done.stdout.splitlines()[-1]
    print(f"{time.monotonic() - begun_s:.0f} s {last if code else ''}".rstrip(), flush=True)
    return last


if __name__ == "__main__":
    main()
