"""One answer for every row, and models that are no better."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType
from rich.status import Status

from model_store.metric import MeasuredMetric
from model_store.store import ModelStore
from tests.unit.training.recipes import CLASSES, recipe
from training.loading.label_arrays import IGNORED_LABEL
from training.metrics.guess import Guess, best_guess
from training.metrics.task_metric import TaskMetric
from training.pipeline import run
from training.reporting.report import Report
from training.reporting.report_page import report_page
from training.watcher import NullWatcher

CLASS = TaskMetric("classes")


def accuracy(value: float, low: float = 0.0, high: float = 1.0) -> MeasuredMetric:
    return MeasuredMetric(name="accuracy", value=value, interval=(low, high), better="higher")


def guessed(metric: TaskMetric, training: Any, test: Any, width: int, **more: Any) -> Guess:
    model = more.pop("model", accuracy(1.0))
    found = best_guess(metric, np.asarray(training), np.asarray(test), model, width, **more)
    assert found is not None
    return found


def test_the_most_frequent_class_of_training_is_judged_on_the_test_split() -> None:
    found = guessed(CLASS, [0, 1, 1, 2], [1, 0, 0, 0, 0], 3, names=("no", "yes", "else"))
    assert found.answer == "class 'yes'"
    assert found.metric.value == found.metrics["accuracy"] == pytest.approx(0.2)
    assert guessed(CLASS, [2, 2, 1], [2, 1], 3).answer == "class 2"


def test_places_that_do_not_count_are_no_class() -> None:
    told = [[1, IGNORED_LABEL], [1, 0], [2, IGNORED_LABEL]]
    found = guessed(CLASS, told, told, 3)
    assert (found.answer, found.metric.value) == ("class 1", 0.5)


def test_of_numbers_it_is_the_mean_of_each_column() -> None:
    labels = np.array([[1.0, 10.0], [3.0, 30.0]], np.float32)
    found = guessed(TaskMetric("regression"), labels, labels, 2)
    assert found.answer == "the mean"
    assert found.metric.value == pytest.approx(np.sqrt((1 + 100) / 2))
    assert found.metrics["r2"] == pytest.approx(0)
    single = np.array([1.0, 3.0], np.float32)
    assert guessed(TaskMetric("regression"), single, single, 1).metric.value == pytest.approx(1)
    gaps = np.array([[[1.0], [np.nan]], [[3.0], [2.0]]], np.float32)
    assert guessed(TaskMetric("regression"), gaps, gaps, 1).metrics["mae"] == pytest.approx(2 / 3)


def test_of_counts_it_is_the_mean_whatever_answers_are() -> None:
    labels = np.array([0.0, 4.0], np.float32)
    for logarithms in (False, True):
        found = guessed(TaskMetric("counts", log_rates=logarithms), labels, labels, 1)
        assert found.metric.value == pytest.approx(2)


def test_of_labels_it_is_the_better_of_two() -> None:
    rare = np.array([[1, 0], [0, 0], [0, 0], [0, 1]], np.float32)
    found = guessed(TaskMetric("multi_label"), rare, rare, 2)
    assert found.answer == "all labels"
    assert found.metric.value == pytest.approx(0.4)
    usual = np.array([[1, 0], [1, 0], [1, 0], [0, 0]], np.float32)
    assert guessed(TaskMetric("multi_label"), usual, usual, 2).answer == "the usual labels"


@pytest.mark.parametrize(
    ("model", "beaten", "words"),
    [
        (accuracy(0.6), "no", "the model is no better than guessing: test/accuracy is 60.0 %"),
        (accuracy(0.5), "no", "no better than guessing"),
        (accuracy(0.7, 0.55, 0.8), "perhaps", "may be no better than guessing"),
        (accuracy(0.7, 0.65, 0.8), "yes", None),
    ],
)
def test_a_model_is_better_or_it_is_said(
    model: MeasuredMetric, beaten: str, words: str | None
) -> None:
    found = guessed(CLASS, [0, 0, 1], [0, 0, 0, 1, 1], 2, model=model)
    assert found.metric.value == 0.6
    assert found.beaten == beaten
    warning = found.warning()
    assert (warning is None) if words is None else (warning and words in warning)
    if warning:
        assert warning.endswith("and class 0 for every row gives 60.0 %")


@pytest.mark.parametrize(
    ("metric", "labels", "words"),
    [
        (TaskMetric("regression"), np.full(3, 1e6, np.float32), "labels are all 1000000 in FP32"),
        (
            TaskMetric("regression"),
            np.array([1e6, 1e6 + 1e-3, 1e6 - 1e-3]).astype(np.float32),
            "labels are all 1000000 in FP32",
        ),
        (
            TaskMetric("regression"),
            np.full((3, 2), 0.1, np.float32),
            "labels are all [0.1, 0.1] in FP32",
        ),
        (CLASS, np.array([1, 1, 1]), "labels are all class 1"),
    ],
)
def test_labels_that_are_all_one_value_are_named(
    metric: TaskMetric, labels: Any, words: str
) -> None:
    bad = MeasuredMetric(name="rmse", value=1.0, better="lower")
    model = bad if metric is not CLASS else accuracy(0.5)
    warning = guessed(metric, labels, labels, 2, model=model).warning()
    assert warning is not None
    assert warning.startswith(f"{words}, so nothing can be learned; the model is no better")


def test_labels_that_differ_can_be_learned() -> None:
    for rows in ([1.0, 2.0], [[1.0, 2.0], [1.0, 3.0]]):
        labels = np.array(rows, np.float32)
        assert guessed(TaskMetric("regression"), labels, labels, 1).only_label is None
    assert guessed(CLASS, [0, 1], [0, 1], 2).only_label is None


def test_an_error_is_better_when_it_is_lower() -> None:
    labels = np.array([1.0, 3.0], np.float32)
    for value, beaten in ((1.0, "no"), (1.1, "no"), (0.5, "yes")):
        model = MeasuredMetric(name="rmse", value=value, better="lower")
        found = guessed(TaskMetric("regression"), labels, labels, 1, model=model)
        assert (found.beaten, found.condition) == (beaten, "test/rmse < guess")


def random_labels(seed: int) -> dict[str, Any]:
    """Images that say nothing about their class; three of five rows have class 1."""
    random = np.random.default_rng(seed)

    def split(rows: int) -> Any:
        labels = np.where(np.arange(rows) % 5 < 3, 1, np.arange(rows) % CLASSES)
        return {"image": random.random((rows, 1, 8, 8), np.float32)}, labels.astype(np.int64)

    return {"train": split(80), "validation": split(40), "test": split(100)}


class Told(NullWatcher):
    """Keeps what is told behind the last event."""

    text = ""

    def promoted(self, text: str) -> None:
        self.text = text


class Screen(Console):
    """Keeps what is shown while something goes on."""

    shown: list[object]

    def status(self, status: RenderableType, **how: Any) -> Status:
        self.shown.append(status)
        return super().status(status, **how)


def test_a_run_says_so_in_its_lines_its_report_its_manifest_and_its_event(tmp_path: Path) -> None:
    screen, told = io.StringIO(), Told()
    wanted = recipe(
        data={"target": f"{__name__}:random_labels"},
        train={"epochs": 1, "threads": 1},
        optim={"adamw": {"lr": 1e-6}},
        export=[{"kind": "onnx"}],
        publish={"model": "small", "if": "first and test/accuracy > guess"},
    )
    console = Screen(file=screen, width=1000)
    console.shown = []
    manifest = run(wanted, str(tmp_path / "s"), tmp_path / "r", console=console, watcher=told)
    line = next(one for one in screen.getvalue().splitlines() if one.startswith("warning: "))
    assert "no better than guessing: test/accuracy is" in line
    assert "class 1 for every row gives" in line
    assert "locating the departure of refused artifacts" not in console.shown, "none was refused"
    assert "replaying every artifact against the checkpoint" in console.shown
    assert line.endswith(
        "publish: {if: test/accuracy > guess} keeps such a version from going live"
    )
    assert "; production stays where it is (test/accuracy > guess is not met: " in told.text
    assert "no better than guessing" in told.text
    store = ModelStore(str(tmp_path / "s"))
    assert store.pointers("small") is None
    assert 0.6 <= manifest.lineage.metrics["guess/accuracy"] < 0.9
    entry = manifest.file("report.json")
    assert entry is not None
    report = Report.model_validate_json(store.read_file(manifest, entry))
    assert report.guess is not None
    assert report.guess.beaten == "no"
    assert "<b>Warning:</b> the model is no better than guessing" in report_page(report)
