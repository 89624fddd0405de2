"""Program of each of the two processes in `test_ranks_together`: runs recipes in sequence."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.unit.training.recipes import DATA
from training.datasets import load_splits
from training.distributed.lifeline import hold_lifeline
from training.distributed.ranks import Ranks, exit_rank, join_ranks
from training.job import EventWriter, is_to_resume
from training.loop.loop import assist, train
from training.process import compilation
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder


class StayingRanks(Ranks):
    """They have more than one recipe to train."""

    def leave(self) -> None:
        """They stay."""


def main(arguments: Sequence[str]) -> None:
    """Trains each recipe of a file, in a folder of its own; leaves what it shows beside it."""
    hold_lifeline()
    parser = argparse.ArgumentParser()
    for name in ("recipes", "events", "together"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--anew", action="store_true")
    asked = parser.parse_args([word for word in arguments if word != "--lifeline"])
    resume = is_to_resume(asked)
    events = EventWriter(asked.events.open("a"), asked.together)
    compilation.BACKEND = "aot_eager"  # no C++: what is tried here is what several of them do
    joined = join_ranks()
    ranks = StayingRanks(joined.rank, joined.world)
    for name, document in json.loads(asked.recipes.read_text()).items():
        recipe = Recipe.model_validate(document)
        folder = RunFolder(asked.recipes.parent / name, recipe, DATA)
        splits = load_splits(recipe)
        if ranks.is_first:
            folder.path.mkdir(parents=True, exist_ok=True)
            with (asked.recipes.parent / f"{name}.txt").open("a") as shown:
                train(recipe, splits, folder, Console(file=shown), resume, events, None, ranks)
        else:
            assist(recipe, splits, folder, resume, events, None, ranks)
    joined.leave()
    if ranks.is_first:
        events.write("published", model="all", version=1)
    exit_rank(0)
