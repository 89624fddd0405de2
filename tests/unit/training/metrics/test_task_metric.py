"""The metrics: of each task what scikit-learn finds, and sums that add up."""

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import metrics as sklearn_metrics

from flambeau.protocol.tensors import Array
from model_store.metric import BETTER, SHARES
from training.loading.label_arrays import IGNORED_LABEL, LabelArray
from training.metrics.task_metric import Tally, TaskMetric
from training.recipe.parts.task import METRICS, Task

LOGITS = np.eye(4, dtype=np.float32)
"""The top classes of four rows are 0, 1, 2 and 3."""
CLASSES = TaskMetric()


def of_classes(logits: Array, labels: Array) -> dict[str, float]:
    return CLASSES.tally(logits, labels.astype(np.int64)).metrics()


def some(task: Task, rows: int = 40) -> tuple[npt.NDArray[np.float32], LabelArray]:
    """Outputs and labels of a task."""
    random = np.random.default_rng(3)
    outputs = random.normal(size=(rows, 3)).astype(np.float32)
    if task == "classes":
        labels = random.integers(0, 3, rows)
        labels[::7] = IGNORED_LABEL
        return outputs, labels
    if task == "multi_label":
        return outputs, (random.random((rows, 3)) < 0.3).astype(np.float32)
    if task == "counts":
        return outputs, random.poisson(2.0, (rows, 3)).astype(np.float32)
    return outputs, (outputs * 0.5 + random.normal(size=(rows, 3))).astype(np.float32)


def test_rows_of_one_label_have_no_exact_match() -> None:
    found = of_classes(LOGITS, np.array([0, 1, 2, 0]))
    assert found == {"accuracy": 0.75, "macro_f1": pytest.approx((2 / 3 + 1 + 1 + 0) / 4)}


def test_rows_of_several_labels_are_also_counted_as_a_whole() -> None:
    labels = np.array([[0, 1, 2, 3], [0, 1, 2, 0]])
    found = of_classes(np.stack([LOGITS, LOGITS]), labels)
    assert (found["accuracy"], found["exact_match"]) == (7 / 8, 0.5)


def test_places_that_do_not_count_count_neither_way() -> None:
    labels = np.array([[0, 1, -100, -100], [0, 0, -100, -100]])
    found = of_classes(np.stack([LOGITS, LOGITS]), labels)
    assert (found["accuracy"], found["exact_match"]) == (0.75, 0.5)
    assert found["macro_f1"] == pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)  # 2 and 3 do not occur


@pytest.mark.parametrize("task", METRICS)
def test_batches_add_up(task: Task) -> None:
    outputs, labels = some(task)
    metric = TaskMetric(task)
    whole = metric.tally(outputs, labels)
    parts = metric.tally(outputs[:7], labels[:7]) + metric.tally(outputs[7:], labels[7:])
    assert (Tally() + parts).metrics() == pytest.approx(whole.metrics())
    assert set(whole.metrics()) == set(METRICS[task]) - (
        {"exact_match"} if task == "classes" else set()
    )
    assert set(METRICS[task]) <= set(BETTER)


def test_logits_of_another_shape_have_no_right_answer() -> None:
    assert of_classes(LOGITS[:, None], np.array([0, 1, 2, 3]))["accuracy"] == 0
    outputs, labels = some("regression")
    assert TaskMetric("regression").measured(outputs[:, :2], labels) is None


def test_classes_are_judged_as_scikit_learn_does() -> None:
    logits, labels = some("classes")
    told = labels != IGNORED_LABEL
    answers = logits.argmax(axis=1)
    expected = sklearn_metrics.f1_score(labels[told], answers[told], average="macro")
    assert CLASSES.tally(logits, labels).metrics()["macro_f1"] == pytest.approx(expected)


def test_labels_on_their_own_are_judged_as_scikit_learn_does() -> None:
    logits, labels = some("multi_label")
    assert TaskMetric("multi_label").tally(logits, labels).metrics() == pytest.approx(
        {
            "f1": sklearn_metrics.f1_score(labels, logits > 0, average="micro"),
            "accuracy": float(((logits > 0) == labels).mean()),
            "exact_match": sklearn_metrics.accuracy_score(labels, logits > 0),
        }
    )


@pytest.mark.parametrize("log_rates", [False, True])
def test_numbers_are_judged_as_scikit_learn_does(log_rates: bool) -> None:
    outputs, labels = some("counts")
    answers = np.exp(outputs.astype(np.float64)) if log_rates else outputs
    found = TaskMetric("counts", log_rates).tally(outputs, labels).metrics()
    assert found == pytest.approx(
        {
            "rmse": sklearn_metrics.mean_squared_error(labels, answers) ** 0.5,
            "mae": sklearn_metrics.mean_absolute_error(labels, answers),
            "r2": sklearn_metrics.r2_score(labels, answers),
        }
    )


def test_places_without_a_number_and_columns_that_never_vary() -> None:
    labels = np.array([[[1.0], [np.nan]], [[3.0], [5.0]]], np.float32)
    outputs = np.array([[[2.0], [99.0]], [[3.0], [7.0]]], np.float32)
    found = TaskMetric("regression").tally(outputs, labels).metrics()
    assert found["mae"] == 1.0
    assert found["rmse"] == pytest.approx((5 / 3) ** 0.5)
    constant = np.full((4, 1), 2.5, np.float32)
    for off, r2 in ((0.0, 1.0), (0.1, 0.0)):
        assert TaskMetric("regression").tally(constant + off, constant).metrics()["r2"] == r2


@pytest.mark.parametrize("task", ["multi_label", "regression", "counts"])
def test_the_interval_is_about_that_of_a_bootstrap(task: Task) -> None:
    outputs, labels = some(task, rows=400)
    metric = TaskMetric(task)
    measured = metric.measured(outputs, labels)
    assert measured is not None
    assert measured.interval is not None
    random = np.random.default_rng(0)
    again = []
    for _ in range(400):
        rows = random.integers(0, 400, 400)
        again.append(metric.tally(outputs[rows], labels[rows]).metrics()[measured.name])
    low, high = np.quantile(again, [0.025, 0.975])
    assert measured.interval == pytest.approx((low, high), abs=0.2 * (high - low))
    assert measured.better == ("higher" if measured.name in SHARES else "lower")
