"""A report's figures on the outputs for the test split; the outputs are made up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from tests.unit.training.reporting.test_report import ALL
from training.loading.label_arrays import IGNORED_LABEL
from training.metrics.task_metric import TaskMetric
from training.reporting import examiner
from training.reporting.examination import (
    LONGEST_TEXT,
    MAX_COLUMNS,
    MAX_CONFUSED_PAIRS,
    MAX_LABELS,
    MAX_RESIDUALS,
    MAX_WORST_ROWS,
    Examination,
)
from training.reporting.examiner import calibration, examine
from training.reporting.report import Report

CLASSES = TaskMetric()
NUMBERS = TaskMetric("regression")
RANDOM = np.random.default_rng(7)


def examined(*arguments: Any) -> Examination:
    found = examine(*arguments)
    assert found is not None
    return found


def sure_of(answers: list[int], probability: float, classes: int) -> Any:
    """Logits whose softmax has the probability at the answers, and the rest evenly."""
    found = np.full((len(answers), classes), np.log((1 - probability) / (classes - 1)), np.float32)
    found[np.arange(len(answers)), answers] = np.log(probability)
    return found


def test_the_matrix_counts_as_scikit_learn_does() -> None:
    logits = RANDOM.normal(size=(200, 5)).astype(np.float32)
    labels = RANDOM.integers(0, 5, 200)
    found = examined(CLASSES, logits, labels, list("abcde")).confusion
    assert found is not None
    assert found.classes == tuple("abcde")
    assert np.array_equal(found.counts, confusion_matrix(labels, logits.argmax(axis=1)))
    assert found.pairs == ()


def test_of_many_classes_the_most_confused_pairs_are_told() -> None:
    labels = np.array([40] * 9 + [3] * 5 + [7] * 4)
    answers = [41] * 6 + [40] * 3 + [5] * 5 + [7] * 4
    found = examined(CLASSES, sure_of(answers, 0.9, 50), labels).confusion
    assert found is not None
    assert (found.classes, found.counts) == ((), ())
    pairs = [(one.truth, one.answer, one.count, one.labels) for one in found.pairs]
    assert pairs == [("40", "41", 6, 9), ("3", "5", 5, 5)]


def test_calibration_is_the_mean_gap_between_confidence_and_accuracy() -> None:
    labels = np.zeros(20, np.int64)
    half = sure_of([0] * 5 + [1] * 5, 0.9, 3)  # 0.9 sure, half of it right
    poor = sure_of([0] * 2 + [1] * 8, 0.4, 3)  # 0.4 sure, a fifth right
    found = examined(CLASSES, np.concatenate([half, poor]), labels).calibration
    assert found is not None
    bins = [(round(b.confidence, 4), b.accuracy, b.count) for b in found.bins]
    assert bins == [(0.4, 0.2, 10), (0.9, 0.5, 10)]
    assert found.expected_error == pytest.approx((0.2 + 0.4) / 2)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_every_answer_is_in_the_bin_that_holds_its_confidence(
    answers: list[tuple[float, bool]],
) -> None:
    confidence = np.array([c for c, _ in answers])
    found = calibration(confidence, np.array([right for _, right in answers]))
    assert sum(one.count for one in found.bins) == len(answers)
    for one in found.bins:
        assert one.low - 1e-9 <= one.confidence <= one.high + 1e-9
    assert 0 <= found.expected_error <= 1


def test_the_worst_row_is_the_one_that_is_surest_of_a_wrong_class() -> None:
    logits = sure_of([0, 1, 1, 2], 0.6, 3)
    logits[2] = [-9, 9, 0]
    found = examined(CLASSES, logits, np.array([0, 0, 0, 2]), ["cat", "dog", "owl"]).worst
    assert [one.row for one in found] == [2, 1, 0, 3]
    assert (found[0].truth, found[0].answer) == ("cat", "dog")
    assert found[0].loss == pytest.approx(18, abs=0.01)
    assert found[1].confidence == pytest.approx(0.6)
    assert found[1].loss == pytest.approx(-np.log(0.2))


def test_places_that_do_not_count_are_in_nothing() -> None:
    logits = sure_of([0, 1, 1, 0, 0, 0], 0.8, 2).reshape(3, 2, 2)
    labels = np.array([[0, 0], [1, IGNORED_LABEL], [IGNORED_LABEL, IGNORED_LABEL]])
    found = examined(CLASSES, logits, labels, ["no", "yes"])
    assert found.confusion is not None
    assert found.confusion.counts == ((1, 1), (0, 1))
    assert [(one.row, one.truth, one.answer) for one in found.worst] == [
        (0, "no no", "no yes"),
        (1, "yes", "yes"),
    ]
    assert found.worst[0].loss == pytest.approx(-(np.log(0.8) + np.log(0.2)) / 2)


def test_logits_are_looked_at_in_parts_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = RANDOM.normal(size=(50, 4)).astype(np.float32)
    labels = RANDOM.integers(0, 4, 50)
    whole = examine(CLASSES, logits, labels)
    monkeypatch.setattr(examiner, "NUMBERS_AT_ONCE", 12)
    assert examine(CLASSES, logits, labels) == whole


def test_answers_that_are_no_numbers_are_the_worst_and_still_written() -> None:
    logits = sure_of([0, 0, 0], 0.9, 2)
    logits[1] = np.nan
    logits[2] = [-np.inf, np.inf]
    found = examined(CLASSES, logits, np.zeros(3, np.int64))
    assert [one.row for one in found.worst] == [1, 2, 0]
    again = Report.model_validate_json(ALL.model_copy(update={"examination": found}).to_json())
    assert again.examination == found


def test_each_label_has_the_figures_that_scikit_learn_has() -> None:
    logits = RANDOM.normal(size=(80, 3)).astype(np.float32)
    labels = (RANDOM.random((80, 3)) < 0.4).astype(np.float32)
    found = examined(TaskMetric("multi_label"), logits, labels, ["a", "b", "c"])
    expected = precision_recall_fscore_support(labels, logits > 0)
    figures = {one.name: one for one in found.label_figures}
    for place, name in enumerate("abc"):
        one = figures[name]
        assert [one.precision, one.recall, one.f1, one.rows] == pytest.approx(
            [column[place] for column in expected]
        )
    f1s = [one.f1 for one in found.label_figures]
    assert f1s == sorted(f1s)
    assert found.calibration is not None
    worst = found.worst[0]
    p = np.where(labels == 1, 1, -1) * logits
    entropy = np.log1p(np.exp(-p)).mean(axis=1)
    assert worst.row == entropy.argmax()
    assert worst.loss == pytest.approx(entropy.max(), rel=1e-5)


def test_the_worst_row_of_several_labels_tells_them_by_name() -> None:
    logits = np.array([[5, 5, -5], [-2, -2, -2], [1, 1, 1]], np.float32)
    labels = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 1]], np.float32)
    worst = examined(TaskMetric("multi_label"), logits, labels, ["a", "b", "c"]).worst
    assert [(one.truth, one.answer) for one in worst] == [
        ("none", "a, b"),
        ("a, c", "none"),
        ("a, b, c", "a, b, c"),
    ]


def test_residuals_are_pairs_of_label_and_answer() -> None:
    told = np.array([1, 2, 3], np.float32)
    found = examined(NUMBERS, np.array([[1.5], [2.5], [9.5]], np.float32), told)
    (column,) = found.residuals
    assert np.array(column.points).tolist() == [[1, 1.5], [2, 2.5], [3, 9.5]]
    assert column.mean_error == pytest.approx(2.5)
    assert (found.worst[0].row, found.worst[0].truth, found.worst[0].answer) == (2, "3", "9.5")
    assert found.worst[0].loss == pytest.approx(6.5 / told.std())
    assert found.worst[0].confidence is None


def test_columns_are_judged_in_their_own_spread_and_gaps_left_out() -> None:
    told = np.zeros((4, 2, 2), np.float32)
    told[..., 0] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    told[..., 1] = told[..., 0] * 1000
    given = told.copy()
    given[1, 0, 1] += 100  # little, in a column that varies by thousands
    given[2, 1, 0] += 50
    told[3] = np.nan
    found = examined(NUMBERS, given, told)
    assert next(one.row for one in found.worst) == 2
    assert len(found.worst) == 3
    assert [one.labels for one in found.residuals] == [6, 6]


def test_counts_are_judged_as_numbers_and_not_as_logarithms() -> None:
    poisson = TaskMetric("counts", log_rates=True)
    found = examined(poisson, np.log(np.array([[2.0], [5.0]])), np.array([2, 3], np.float32))
    (column,) = found.residuals
    assert np.array(column.points) == pytest.approx(np.array([[2, 2], [3, 5]]))


def test_outputs_of_another_shape_are_not_examined() -> None:
    assert examine(CLASSES, np.zeros((3, 2, 4)), np.zeros(3, np.int64)) is None
    assert examine(NUMBERS, np.zeros((3, 2)), np.zeros(3, np.float32)) is None
    assert examine(CLASSES, np.zeros((2, 3)), np.full(2, IGNORED_LABEL)) is None


def test_a_report_stays_small_whatever_the_data_is() -> None:
    rows = 2000
    noise = RANDOM.integers(0, 256, (1, 3, 200, 128)).astype(np.uint8)
    image = np.broadcast_to(noise, (rows, 3, 200, 128))
    names = ["<" * 1000 + str(place) for place in range(200)]
    classes = RANDOM.normal(size=(rows, 200)).astype(np.float32)
    many = examined(CLASSES, classes, RANDOM.integers(0, 200, rows), names, {"image": image})
    assert many.confusion is not None
    assert len(many.confusion.pairs) == MAX_CONFUSED_PAIRS
    assert len(many.worst) == MAX_WORST_ROWS
    assert max(len(one.truth) for one in many.worst) <= LONGEST_TEXT
    told = (classes > 1).astype(np.float32)
    labels = examined(TaskMetric("multi_label"), classes, told, names)
    assert len(labels.label_figures) == MAX_LABELS
    assert labels.left_out == 200 - MAX_LABELS
    numbers = examined(NUMBERS, classes, classes, (), {f"x{n}": classes for n in range(20)})
    assert len(numbers.residuals) == MAX_COLUMNS
    assert numbers.left_out == 200 - MAX_COLUMNS
    assert len(numbers.residuals[0].points) == MAX_RESIDUALS
    for found in (many, labels, numbers):
        assert len(found.model_dump_json()) < 300_000
