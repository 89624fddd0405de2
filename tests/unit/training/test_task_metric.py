"""The metric: one label a row or several, and places that do not count."""

import numpy as np

from training.task_metric import Tally, tally

LOGITS = np.eye(4, dtype=np.float32)
"""The top classes of four rows are 0, 1, 2 and 3."""


def test_rows_of_one_label_have_an_accuracy_only() -> None:
    assert tally(LOGITS, np.array([0, 1, 2, 0])).metrics() == {"accuracy": 0.75}


def test_rows_of_several_labels_are_also_counted_as_a_whole() -> None:
    labels = np.array([[0, 1, 2, 3], [0, 1, 2, 0]])
    found = tally(np.stack([LOGITS, LOGITS]), labels).metrics()
    assert found == {"accuracy": 7 / 8, "exact_match": 0.5}


def test_places_that_do_not_count_count_neither_way() -> None:
    labels = np.array([[0, 1, -100, -100], [0, 0, -100, -100]])
    found = tally(np.stack([LOGITS, LOGITS]), labels).metrics()
    assert found == {"accuracy": 0.75, "exact_match": 0.5}


def test_batches_add_up() -> None:
    labels = np.array([0, 1, 2, 0])
    parts = tally(LOGITS[:1], labels[:1]) + tally(LOGITS[1:], labels[1:])
    assert Tally() + parts == tally(LOGITS, labels)


def test_logits_of_another_shape_have_no_right_answer() -> None:
    assert tally(LOGITS[:, None], np.array([0, 1, 2, 3])).metrics() == {"accuracy": 0}
