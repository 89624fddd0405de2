"""Two processes learn what one does, and go on when one of them is killed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.training.recipes import DATA
from training.datasets import load_splits
from training.learning.loop import train
from training.recipe import Recipe
from training.run_folder import RunFolder
from training.together import launcher
from training.together.launcher import run_together

PROGRAM = (
    f"{launcher._START} sys.path.append('.'); "
    "from tests.unit.training.ranks_program import main; main(sys.argv[1:])"
)
TOLERANCE = 1e-5


def recipe(parallel: str, batch_size: int = 19, **args: Any) -> Recipe:
    """Windows, a last batch of one row, class weights, clipping, and a part that is frozen."""
    network = "tests.unit.training.rank_network"
    return Recipe.model_validate(
        {
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
    )


class Told:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def write(self, kind: str, **fields: Any) -> None:
        """See `training.together.launcher.Events`."""
        self.kinds.append(kind)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, all of one start of two processes, the second of which was killed once."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "spared").touch()
    recipes = {
        "ddp": recipe("ddp"),
        "fsdp": recipe("fsdp"),
        "undisturbed": recipe("ddp", 22, dropout=0.3, marker=str(folder / "spared")),
        "killed": recipe("ddp", 22, dropout=0.3, marker=str(folder / "killed-once")),
    }
    documents = {name: chosen.document() for name, chosen in recipes.items()}
    (folder / "recipes.json").write_text(json.dumps(documents))
    told = Told()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "_RANK", PROGRAM)
        run_together(recipes["ddp"], ["--recipes", str(folder / "recipes.json")], told)
    assert (folder / "killed-once").exists()
    assert told.kinds == ["metric"] * 4 * len(recipes) + ["published"]  # rank 0 tells, and once
    return folder


def curve(folder: Path) -> list[dict[str, float]]:
    """What every epoch told, but for what the clock told."""
    (path,) = folder.glob("*/metrics.jsonl")
    return [json.loads(line) | {"train/wait_share": 0} for line in path.read_text().splitlines()]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_learn_what_one_does(runs: Path, parallel: str, tmp_path: Path) -> None:
    alone = recipe("none")
    folder = RunFolder(tmp_path, alone, DATA)
    folder.path.mkdir()
    train(alone, load_splits(alone), folder, Console(file=io.StringIO()))
    expected, found = curve(tmp_path), curve(runs / parallel)
    assert len(found) == len(expected) == 4
    for one, two in zip(expected, found, strict=True):
        assert two == pytest.approx(one, abs=TOLERANCE)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_process_goes_on_from_the_checkpoint_of_two(
    runs: Path, parallel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = recipe("none")
    (state,) = (runs / parallel).glob("*/checkpoints/state.pt")
    folder = RunFolder(runs / parallel, longer, DATA)
    assert folder.checkpoints == state.parent, "the number of processes is no part of the digest"
    told = Console(file=io.StringIO())
    found = train(longer, load_splits(longer), folder, told, resume=True)
    assert found.state.epoch == 4
    assert "resuming after epoch 4" in told.file.getvalue()  # type: ignore[attr-defined]


def test_a_killed_rank_changes_no_bit(runs: Path) -> None:
    assert curve(runs / "killed") == curve(runs / "undisturbed")
    (expected,) = (runs / "undisturbed").glob("*/checkpoints/epoch-000004.safetensors")
    (found,) = (runs / "killed").glob("*/checkpoints/epoch-000004.safetensors")
    assert found.read_bytes() == expected.read_bytes()
