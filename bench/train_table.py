"""`make train-table`: every family of networks trained, killed in mid-epoch, and resumed.

Each recipe of `training/recipes/` is trained on real data in a process of its own; then once more
in a process that SIGKILL takes in mid-epoch, behind a checkpoint, and in a third one that resumes:
the weights it ends with are compared with the undisturbed ones, by sha256, and the steps that it
made itself must be those behind the checkpoint: beginning anew would end with equal weights, too.
Nothing is exported. A table that was interrupted goes on with the family it was at, if neither its
recipe nor the code has changed. Prints the table and writes `docs/training.md` and
`bench/results/train-table.json`; exits with 1 if weights differ or a run began anew.
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
from bench.peers.flambeau_peer import ROOT
from bench.training.one_training import Figures
from model_store.metric import metric_text
from model_store.strict import StrictModel
from training.process.file_digest import file_sha256
from training.process.library_versions import library_versions
from training.recipe.file import load_recipe

NAME = "train-table"
PAGE = ROOT / "docs" / "training.md"
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
"""Folders whose sources decide what a training ends with, and whether it goes on."""
LIBRARIES = ("torch", "numpy", "scikit-learn", "safetensors")
TIMEOUT_S = 3600
"""Of one training: there are many cores' worth of others on some machines."""
HEAD = (
    *("family", "recipe", "metric", "value", "95 % interval", "epochs", "time", "CPU time"),
    *("steps per CPU second", "resumed-equal"),
)


class Row(StrictModel):
    """What became of one family."""

    recipe: str
    """The digest of what decides the weights: another one is measured anew."""
    code: str
    """The digest of the code that trained, see `code_digest`: so is other code."""
    whole: Figures
    """Of the undisturbed training."""
    killed: str
    """Where it was killed, in words."""
    resumed_from: str
    """The name of the checkpoint's weights that it went on from."""
    checkpoint_epochs: int
    """Epochs that this checkpoint holds."""
    checkpoint_steps: int
    """Steps behind those epochs that it holds."""
    resumed: Figures
    """Of the training that was killed and resumed."""

    @property
    def went_on(self) -> bool:
        """Whether the resumed run made the steps behind its checkpoint, and no others."""
        found = self.resumed
        before = self.checkpoint_epochs * (found.steps // found.epochs) + self.checkpoint_steps
        return before > 0 and found.own_steps == found.steps - before

    @property
    def equal(self) -> bool:
        """Whether it went on, and both have the same weights of the last epoch and the best."""
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
    """A line of the table: see `HEAD`."""
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
    """The table as Markdown."""
    lines = [HEAD, ["---"] * 3 + ["---:"] * 6 + ["---"]]
    lines += [cells(family, row) for family, row in rows.items()]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """That all families go on where they were killed."""
    equal = sum(row.equal for row in rows.values())
    what = "families that end with the same weights when killed in mid-epoch and resumed"
    return [Verdict(what=what, value=equal, bound="at least", target=len(rows))]


def code_digest(root: Path = ROOT) -> str:
    """Of the sources that train, and of the versions of what they train with."""
    digest = hashlib.sha256(json.dumps(library_versions(LIBRARIES)).encode())
    sources = [path for part in CODE for path in (root / part).rglob("*.py")]
    for path in sorted([*sources, root / "bench" / "training" / "one_training.py"]):
        digest.update(f"\n{path.relative_to(root)} {file_sha256(path)}".encode())
    return digest.hexdigest()


def kept_row(kept: Path, recipe: str, code: str) -> Row | None:
    """What was measured before; None if it was not, or of another recipe or by other code.

    Args:
        kept: the file.
        recipe: the digest of the recipe.
        code: that of the code.
    """
    try:
        row = Row.model_validate_json(kept.read_bytes())
    except (FileNotFoundError, ValidationError):  # other code has other fields
        return None
    return row if (row.recipe, row.code) == (recipe, code) else None


def _row(name: str, folder: Path, again: bool) -> Row:
    """Measured, or as it was measured before if recipe and code are still the same."""
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
    """The last line that a training printed, which ended as it should."""
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
