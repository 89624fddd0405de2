"""Two processes learn what one does, and go on when one of them is killed.

All of it is one start of two processes, which run one recipe behind the other.
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file

from tests.unit.training.recipes import DATA
from training.datasets import load_splits
from training.distributed.launcher import run_together
from training.loop.loop import train
from training.process import compilation
from training.recipe.parts.train_parts import CheckpointPart
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

pytestmark = pytest.mark.long
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.path.append('.'); "
    "from tests.unit.training.ranks_program import main; main(sys.argv[1:])"
)
TOLERANCE = 1e-5
TOLERANCES = {"halved": 0.02, "compiled": TOLERANCE}
"""Largest difference of sums in bfloat16 over different rows."""
OPTIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    # Ends early, and its learning rate falls on the way.
    "waiting": {
        "train": {"epochs": 20, "ema": 0.5},
        "optim": {"adamw": {"lr": 0.2}},
        "schedule": {"plateau": {"patience": 0, "factor": 0.5, "threshold": 0.05}},
        "stop": {"metric": "val/accuracy", "patience": 3},
    },
    "halved": {"train": {"precision": "bf16"}},
    "pruned": {"prune": {"amount": 0.5, "at": "60%"}},
    "compiled": {"train": {"compile": True}},
    "normed": {
        "model": {"args": {"batch_norm": True}},
        "train": {"sync_batch_norm": True, "activation_checkpoint": ["body.[34]"]},
    },
}


def recipe(parallel: str, option: str = "whole", batch_size: int = 19, **args: Any) -> Recipe:
    """Windows, a last batch of one row, class weights, clipping, and a part that is frozen."""
    network = "tests.unit.training.rank_network"
    document: dict[str, Any] = {
        "name": "together",
        "model": {
            "target": f"{network}:RankNetwork",
            "args": args,
            "freeze": ["body.0.weight"],
        },
        "data": {"target": f"{network}:rows", "batch_size": batch_size},
        "loss": {"cross_entropy": {"weight": [0.5, 1.0, 3.0]}},
        "optim": {"adamw": {"lr": 0.01}, "accumulate": 2, "clip": {"norm": 0.5}},
        "train": {
            "epochs": 4,
            "threads": 1,
            "parallel": parallel,
            "processes": 1 if parallel == "none" else 2,
            "activation_checkpoint": ["body.3"],
        },
        "track": ["jsonl"],
        "publish": {"model": "together"},
    }
    for part, keys in OPTIONS[option].items():
        document[part] = {**document.get(part, {}), **keys}
    return Recipe.model_validate(document)


class Told:
    """Records the kinds of events."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def write(self, kind: str, **fields: Any) -> None:
        """See `training.distributed.launcher.Events`."""
        self.kinds.append(kind)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs all recipes in one start of two processes, and kills the second one twice."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "spared").touch()
    early = recipe("ddp", batch_size=22, dropout=0.3, marker=str(folder / "early"), killed_at=3)
    recipes = {
        # The first of all, so that none has ended an epoch before.
        "killed-early": early.model_copy(update={"checkpoint": CheckpointPart(every_steps=1)}),
        **{f"ddp-{option}": recipe("ddp", option) for option in OPTIONS},
        "fsdp-whole": recipe("fsdp"),
        "fsdp-normed": recipe("fsdp", "normed"),
        "undisturbed": recipe("ddp", batch_size=22, dropout=0.3, marker=str(folder / "spared")),
        "killed": recipe("ddp", batch_size=22, dropout=0.3, marker=str(folder / "killed-once")),
    }
    documents = {name: chosen.document() for name, chosen in recipes.items()}
    (folder / "recipes.json").write_text(json.dumps(documents))
    told = Told()
    arguments = ["--recipes", str(folder / "recipes.json"), "--anew"]
    run_together(recipes["ddp-whole"], arguments, told, rank=PROGRAM)
    assert (folder / "killed-once").exists()
    assert (folder / "early").exists()
    epochs = sum(len(curve(folder / name)) for name in recipes)
    assert told.kinds == ["metric"] * epochs + ["published"]  # rank 0 tells, and once
    return folder


def curve(folder: Path) -> list[dict[str, float]]:
    """Returns the metrics of every epoch, without the time-dependent ones."""
    (path,) = folder.glob("*/metrics.jsonl")
    return [json.loads(line) | {"train/wait_share": 0} for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("parallel", "option"),
    [*(("ddp", option) for option in OPTIONS), ("fsdp", "whole"), ("fsdp", "normed")],
)
def test_two_processes_learn_what_one_does(
    runs: Path, parallel: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    alone = recipe("none", option)
    folder = RunFolder(tmp_path, alone, DATA)
    folder.path.mkdir()
    trained = train(alone, load_splits(alone), folder, Console(file=io.StringIO()))
    expected, found = curve(tmp_path), curve(runs / f"{parallel}-{option}")
    assert len(found) == len(expected) == trained.state.epoch
    assert (option == "waiting") is (trained.state.epoch < alone.train.epochs)
    assert (option == "waiting") is (trained.state.rate_factor < 1)
    for one, two in zip(expected, found, strict=True):
        assert two == pytest.approx(one, abs=TOLERANCES.get(option, TOLERANCE))
    (weights,) = (runs / f"{parallel}-{option}").glob(f"*/checkpoints/{trained.weights.name}")
    assert load_file(weights).keys() == load_file(trained.weights).keys()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_process_goes_on_from_the_checkpoint_of_two(runs: Path, parallel: str) -> None:
    longer = recipe("none")
    (state,) = (runs / f"{parallel}-whole").glob("*/checkpoints/state.pt")
    folder = RunFolder(runs / f"{parallel}-whole", longer, DATA)
    assert folder.checkpoints == state.parent, "the number of processes is no part of the digest"
    told = Console(file=io.StringIO())
    found = train(longer, load_splits(longer), folder, told, resume=True)
    assert found.state.epoch == 4
    assert "trained already, to the end of epoch 4" in told.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "last"),
    [("killed-early", "epoch 0 and 1 steps"), ("killed", "epoch 2")],
)
def test_a_killed_rank_changes_no_bit(runs: Path, name: str, last: str) -> None:
    """The ranks resume from the last checkpoint, even with `--anew`."""
    assert f"resuming after {last} from" in " ".join((runs / f"{name}.txt").read_text().split())
    assert curve(runs / name) == curve(runs / "undisturbed")
    (expected,) = (runs / "undisturbed").glob("*/checkpoints/epoch-000004.safetensors")
    (found,) = (runs / name).glob("*/checkpoints/epoch-000004.safetensors")
    assert found.read_bytes() == expected.read_bytes()
