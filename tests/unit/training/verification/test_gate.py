"""Checks of the gate: numbers by their spread and their error, labels by F1."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.metric import (
    MeasuredMetric,
    better_of,
    figure_texts,
    how_much_worse,
    is_better,
    metric_text,
    metric_texts,
)
from model_store.tolerance import Tolerance
from training.loading.label_arrays import spreads, whole_spread
from training.metrics.task_metric import TaskMetric
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.parts.export_entries import Fp32Tolerance
from training.recipe.parts.task import Task
from training.verification.gate import no_difference, tolerance_of, too_far_off, too_much_worse

LABELS = np.array([[1.0, 100.0], [3.0, 500.0]], np.float32)
"""Spreads of 1 and 200."""
NUMBERS = TaskMetric("regression")


def metric(name: str, value: float) -> MeasuredMetric:
    better = TaskMetric("regression" if name == "rmse" else "multi_label")
    assert better.name == name
    measured = "lower" if name == "rmse" else "higher"
    return MeasuredMetric.model_validate({"name": name, "value": value, "better": measured})


def test_the_limit_of_outputs_follows_the_spread_of_the_labels() -> None:
    assert spreads(LABELS).tolist() == [1, 200]
    assert spreads(np.ones(3, np.float32)).tolist() == [0.01]
    assert spreads(np.zeros(3, np.float32)).tolist() == [1]
    found = tolerance_of(OnnxInt8Export(), NUMBERS, LABELS)
    limits = {"max_abs_difference": 50, "min_agreement": 0, "max_probability_shift": 1}
    assert found == Tolerance.model_validate(limits)
    rates = tolerance_of(OnnxInt8Export(), TaskMetric("counts", log_rates=True), LABELS)
    assert rates.max_abs_difference == 0.25
    assert tolerance_of(OnnxExport(), TaskMetric("classes"), LABELS).min_agreement == 0.999
    assert tolerance_of(OnnxExport(), TaskMetric("multi_label"), LABELS).min_agreement == 0


@pytest.mark.parametrize(
    ("off", "task", "reason"),
    [
        ([0.2, 40.0], "regression", None),
        (
            [0.3, 0.0],
            "regression",
            "the test split: column 0 lies up to 0.3 times the standard deviation of its labels, "
            "or the checkpoint's own error, off, more than 0.25",
        ),
        ([0.3, 0.0], "multi_label", None),
    ],
)
def test_each_column_is_held_to_its_own_spread(
    off: list[float], task: Task, reason: str | None
) -> None:
    found = LABELS + np.array([off, [0, 0]])
    assert too_far_off(OnnxInt8Export(), TaskMetric(task), LABELS, LABELS, found) == reason


@pytest.mark.parametrize(
    ("name", "before", "after", "reason"),
    [
        ("rmse", 50.0, 51.0, None),
        ("rmse", 50.0, 40.0, None),
        ("rmse", 50.0, 51.1, "the test split: rmse rose from 50 to 51.1, by more than 2.00%"),
        ("rmse", 0.0, 1.44, None),
        ("rmse", 0.0, 1.45, "the test split: rmse rose from 0 to 1.45, by more than 2.00%"),
        ("f1", 0.80, 0.79, None),
        ("f1", 0.80, 0.78, "the test split: f1 fell from 0.8000 to 0.7800, by more than 0.0100"),
    ],
)
def test_an_error_may_rise_by_a_share_and_f1_fall_by_points(
    name: str, before: float, after: float, reason: str | None
) -> None:
    found = too_much_worse(metric(name, before), metric(name, after), OnnxInt8Export(), LABELS)
    assert found == reason


NEARLY_CONSTANT = np.array([[1.0, 0.5], [3.0, 0.5 + 1e-6]], np.float32)


def test_a_column_that_hardly_varies_is_measured_by_what_the_checkpoint_knows_of_it() -> None:
    answers = NEARLY_CONSTANT + np.array([[0.1, 0.01], [-0.1, -0.01]], np.float32)
    rounded = answers + np.float32(2e-6)
    assert too_far_off(OnnxExport(), NUMBERS, NEARLY_CONSTANT, answers, rounded) is None
    wrong = answers + np.array([0.0, 1e-3], np.float32)
    reason = too_far_off(OnnxExport(), NUMBERS, NEARLY_CONSTANT, answers, wrong)
    assert reason is not None
    assert "column 1 lies up to 0.1 times" in reason


def test_a_column_of_fp16_may_lie_a_rounding_step_off() -> None:
    labels = np.array([[1.0, 0.3], [3.0, 0.5]], np.float32)
    right = labels.astype(np.float16)
    step = np.nextafter(right, np.float16(0))
    assert too_far_off(OnnxExport(), NUMBERS, labels, right, step) is None
    further = np.nextafter(step, np.float16(0))
    assert too_far_off(OnnxExport(), NUMBERS, labels, right, further) is not None


def test_one_column_that_hardly_varies_has_a_limit_that_can_be_kept() -> None:
    labels = NEARLY_CONSTANT[:, 1]
    answers = labels + np.array([0.01, -0.01], np.float32)
    assert tolerance_of(OnnxExport(), NUMBERS, labels).max_abs_difference == pytest.approx(
        5e-6, rel=1e-3
    )
    found = tolerance_of(OnnxExport(), NUMBERS, labels, answers).max_abs_difference
    assert found == pytest.approx(1e-5, rel=1e-3)


def columns_of(numbers: list[float]) -> npt.NDArray[np.float32]:
    """Returns two columns: one that varies by 1, and the numbers."""
    return np.stack([np.arange(len(numbers)) % 3 - 1.0, numbers], axis=1).astype(np.float32)


NAN = float("nan")


@pytest.mark.parametrize(
    "numbers",
    [
        [5.0] * 6,
        [0.0] * 6,
        [1e6] * 6,
        [5.0, 5.0, 5.0, 5.0, 5.0, 5.0 + 1e-6],
        [1e-9, -1e-9, 0.0, 1e-9, 0.0, 0.0],
        [-3e4, -3e4, -3e4, -3e4, -3e4, -3e4 + 0.01],
        [NAN] * 6,
    ],
)
def test_rounding_in_a_column_that_hardly_varies_is_no_reason_to_refuse(
    numbers: list[float],
) -> None:
    labels = columns_of(numbers)[:, np.newaxis]  # [rows, T, D], where NaN says that none is there
    answers = np.nan_to_num(labels, nan=0.25)
    rounded = (answers * np.float32(1 + 1e-6) + np.float32(1e-7)).astype(np.float32)
    assert too_far_off(OnnxExport(), NUMBERS, labels, answers, rounded) is None
    wrong = answers.copy()
    wrong[..., 1] += 0.5 * max(1.0, float(np.abs(answers[..., 1]).max()))
    reason = too_far_off(OnnxExport(), NUMBERS, labels, answers, wrong)
    assert reason is not None
    assert "column 1" in reason


@given(size=st.floats(1e-3, 1e6), share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_no_column_is_refused_for_rounding(size: float, share: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = columns_of(list(size * (1 + share * random.normal(size=20))))
    noise = 1 + 4e-6 * random.uniform(-1, 1, labels.shape)
    rounded = (labels * noise).astype(np.float32)
    assert too_far_off(OnnxExport(), NUMBERS, labels, labels, rounded) is None


def test_a_constant_column_does_not_make_the_error_of_the_others_small() -> None:
    labels = np.array([[1e-4, 7.0], [-1e-4, 7.0]], np.float32)
    assert whole_spread(labels) == pytest.approx(1e-4)
    pair = metric("rmse", 1e-6), metric("rmse", 1e-3)
    assert too_much_worse(*pair, OnnxExport(), labels) is not None


def test_an_error_of_0_may_become_rounding_although_a_column_hardly_varies() -> None:
    for before, after in ((0.0, 1e-6), (1e-9, 1e-6)):
        pair = metric("rmse", before), metric("rmse", after)
        assert too_much_worse(*pair, OnnxExport(), NEARLY_CONSTANT) is None
    found = too_much_worse(metric("rmse", 0.0), metric("rmse", 0.1), OnnxExport(), NEARLY_CONSTANT)
    assert found is not None


def test_embeddings_are_held_to_a_cosine_by_precision() -> None:
    for entry, cosine in ((OnnxExport(), 0.9999), (OnnxInt8Export(), 0.95)):
        for task in (TaskMetric("classes"), NUMBERS):
            found = tolerance_of(entry, task, LABELS, embeddings=("vector",))
            assert (found.embeddings, found.min_cosine) == (("vector",), cosine)


def test_what_has_no_metric_is_refused() -> None:
    refusal = too_much_worse(metric("rmse", 1.0), None, OnnxInt8Export(), LABELS)
    assert refusal == "the test split: the outputs are not numbers"


def test_directions() -> None:
    assert is_better(better_of("val/rmse"), 1.0, 2.0)
    assert is_better(better_of("val/r2"), 2.0, 1.0)
    assert not is_better(better_of("mae"), 1.0, 1.0)
    assert how_much_worse("lower", 2.0, 3.0) == 0.5
    assert how_much_worse("lower", 0.0, 1.0) == float("inf")
    assert how_much_worse("higher", 0.9, 0.8) == pytest.approx(0.1)
    assert (metric_text("test/f1", 0.5), metric_text("rmse", 53.2711)) == ("50.0 %", "53.27")


def test_texts_have_as_many_digits_as_show_a_difference() -> None:
    assert figure_texts("test/rmse", 5.272e-07, 5.246e-07) == ("5.272e-07", "5.246e-07")
    assert figure_texts("test/rmse", 53.27111, 53.27112) == ("53.27111", "53.27112")
    assert figure_texts("test/accuracy", 0.9, 0.8) == ("0.9000", "0.8000")
    assert figure_texts("test/accuracy", 0.97221, 0.97222) == ("0.97221", "0.97222")
    assert figure_texts("test/r2", 0.5, 0.5) == ("0.5", "0.5")
    nearly = math.nextafter(0.3, 1)
    assert len(set(figure_texts("test/rmse", 0.3, nearly))) == 2
    assert metric_texts("test/f1", 0.8996, 0.9) == ("89.96 %", "90.00 %")
    assert metric_texts("test/f1", 0.8, 0.6) == ("80.0 %", "60.0 %")


def test_the_least_error_counts_although_none_may_rise() -> None:
    """Documented in docs/guides/optimization.md for `max_error_rise: 0`."""
    entry = OnnxExport.model_validate({"tolerance": {"max_error_rise": 0}})
    labels = np.array([0.0, 2.0], np.float32)
    assert too_much_worse(metric("rmse", 0.001), metric("rmse", 0.01), entry, labels) is None
    refusal = too_much_worse(metric("rmse", 0.001), metric("rmse", 0.0101), entry, labels)
    assert refusal == "the test split: rmse rose from 0.001 to 0.0101, by more than 0.00%"
    assert "also where this is 0" in str(
        Fp32Tolerance.model_json_schema()["properties"]["max_error_rise"]["description"]
    )


def test_a_difference_below_the_rounding_of_a_metric_is_none() -> None:
    spread = float(np.sqrt((1 + 200**2) / 2))
    cases: tuple[tuple[str, Task, float], ...] = (
        ("test/rmse", "regression", 1e-5 * spread),
        ("test/mae", "counts", 1e-5 * spread),
        ("test/r2", "regression", 1e-5),
        ("test/loss", "classes", 1e-5),
        ("test/loss", "regression", 5e-5),
        ("test/accuracy", "classes", 0),
        ("test/macro_f1", "classes", 0),
    )
    for name, task, expected in cases:
        assert no_difference(name, task, LABELS, 5.0) == pytest.approx(expected)
