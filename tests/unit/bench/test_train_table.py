"""The table of families: which recipes are in it, and what it says of weights that differ."""

import os
import signal

import pytest

from bench.one_training import Figures, Killer
from bench.train_table import FAMILIES, RECIPES, Row, page_block, verdicts
from model_store.metric import MeasuredMetric

FIGURES = Figures(
    metric=MeasuredMetric(name="accuracy", value=0.9, interval=(0.85, 0.94), better="higher"),
    epochs=3, steps=30, wall_s=12.0, cpu_s=2.0, last_sha256="a", best_sha256="b",
)  # fmt: skip


def row(**changed: str) -> Row:
    resumed = FIGURES.model_copy(update=changed)
    return Row(recipe="", whole=FIGURES, killed="", resumed_from="", resumed=resumed)


def test_every_recipe_that_ships_is_a_family() -> None:
    assert sorted(FAMILIES.values()) == sorted(path.stem for path in RECIPES.glob("*.yaml"))


def test_a_row_has_the_metric_its_interval_and_the_speed_by_the_processor_s_time() -> None:
    line = page_block({"MLP": row()}).splitlines()[-1]
    assert line == (
        "| MLP | breast_cancer_mlp | accuracy | 90.0 % | 85.0 % to 94.0 % | 3 | 12 s | 2.0 s | 15 "
        "| yes |"
    )
    assert verdicts({"MLP": row()})[0].reached


@pytest.mark.parametrize("weights", ["last_sha256", "best_sha256"])
def test_other_weights_are_said(weights: str) -> None:
    rows = {"MLP": row(), "CNN": row(**{weights: "c"})}
    assert [line.endswith("| NO |") for line in page_block(rows).splitlines()[-2:]] == [False, True]
    assert not verdicts(rows)[0].reached


def test_the_killer_strikes_behind_the_step_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    killer = Killer(epoch=1, in_epoch=2)
    # The loop asks behind each of three steps, and once more behind the epoch.
    assert not any(killer.stop_asked for _ in range(4))
    killer.end_epoch(1, {})
    assert not killer.stop_asked
    assert not kills
    assert not killer.stop_asked
    assert kills == [(os.getpid(), signal.SIGKILL)]
