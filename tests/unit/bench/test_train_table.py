"""The table of families: its recipes, and its report on weights that differ."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bench.train_table import (
    FAMILIES,
    RECIPES,
    Row,
    code_digest,
    kept_row,
    page_block,
    verdicts,
)
from bench.training.one_training import Figures, Killer, StepCounter
from model_store.metric import MeasuredMetric

FIGURES = Figures(
    metric=MeasuredMetric(name="accuracy", value=0.9, interval=(0.85, 0.94), better="higher"),
    epochs=3, steps=30, own_steps=30, wall_s=12.0, cpu_s=2.0, last_sha256="a", best_sha256="b",
)  # fmt: skip


def row(**changed: Any) -> Row:
    """Returns a run that resumed after 14 of 30 steps."""
    return Row(
        recipe="r",
        code="c",
        whole=FIGURES,
        killed="",
        resumed_from="epoch-000001-step-00000004",
        checkpoint_epochs=1,
        checkpoint_steps=4,
        resumed=FIGURES.model_copy(update={"own_steps": 16, **changed}),
    )


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


@pytest.mark.parametrize("own_steps", [30, 20, 0])
def test_equal_weights_of_a_run_that_did_not_go_on_are_not_equal(own_steps: int) -> None:
    """One that silently begins anew ends with equal weights, too."""
    assert page_block({"MLP": row(own_steps=own_steps)}).endswith("| NO |")


def test_a_row_is_kept_for_the_same_recipe_and_the_same_code_alone(tmp_path: Path) -> None:
    kept = tmp_path / "mlp.json"
    assert kept_row(kept, "r", "c") is None
    kept.write_text(row().model_dump_json())
    assert kept_row(kept, "r", "c") == row()
    assert kept_row(kept, "other", "c") is None
    assert kept_row(kept, "r", "other") is None
    kept.write_text('{"recipe": "r", "killed": "as an older program wrote it"}')
    assert kept_row(kept, "r", "c") is None


def test_the_code_s_digest_sees_every_source(tmp_path: Path) -> None:
    for name in ("training/loading/a.py", "model_store/b.py", "bench/training/one_training.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1")
    digests = [code_digest(tmp_path)]
    for name in ("training/loading/a.py", "model_store/b.py", "bench/training/one_training.py"):
        (tmp_path / name).write_text("2")
        digests.append(code_digest(tmp_path))
    (tmp_path / "training" / "c.py").touch()
    digests.append(code_digest(tmp_path))
    assert len(set(digests)) == 5
    (tmp_path / "training" / "notes.txt").touch()
    assert code_digest(tmp_path) == digests[-1]


def test_steps_are_counted_and_the_end_of_an_epoch_is_none() -> None:
    counter = StepCounter()
    for epoch in (1, 2):
        assert not any(counter.stop_asked for _ in range(3 + 1))
        counter.end_epoch(epoch, {})
    assert counter.steps == 6


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
