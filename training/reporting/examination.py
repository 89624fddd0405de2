"""The report's analysis of the answers to the test split: records and size limits.

Rule: a report stays small for any data, so that it fits one page and one JSON file; each limit is
below, and the report states how much was cut.
"""

from pydantic import Field

from flambeau.protocol.strict import StrictModel

MAX_MATRIX_CLASSES = 30
"""Classes of the largest matrix; with more, the most confused pairs are shown instead."""
MAX_CONFUSED_PAIRS = 30
CALIBRATION_BINS = 15
"""Number of bins, as in the paper cited by `Calibration`."""
MAX_LABELS = 50
"""Most labels in the table of precision and recall; those with the lowest F1 come first."""
MAX_COLUMNS = 4
"""Most numeric columns with residuals; the first ones are shown."""
MAX_RESIDUALS = 400
"""Most points per column, evenly spread over the rows."""
MAX_WORST_ROWS = 12
LONGEST_TEXT = 200
"""Most characters of a name or a value; the rest is cut."""


class ConfusedPair(StrictModel):
    """Labels of one class for which another class was predicted."""

    truth: str
    answer: str
    count: int = Field(ge=1)
    """Number of such predictions."""
    labels: int = Field(ge=1)
    """Number of labels of the class."""


class Confusion(StrictModel):
    """Predicted classes by true class."""

    classes: tuple[str, ...] = Field(default=(), max_length=MAX_MATRIX_CLASSES)
    """Class names in order; empty if there are too many for a matrix."""
    counts: tuple[tuple[int, ...], ...] = ()
    """Counts [truth][answer], in the order of `classes`."""
    pairs: tuple[ConfusedPair, ...] = Field(default=(), max_length=MAX_CONFUSED_PAIRS)
    """Replacement for the matrix, the most frequent pairs first."""


class CalibrationBin(StrictModel):
    """Answers of similar confidence."""

    low: float
    """Exclusive lower bound of the confidence, 0 to 1; `high` is the inclusive upper bound."""
    high: float
    count: int = Field(ge=1)
    confidence: float
    """Mean probability of the answers."""
    accuracy: float
    """Share of correct answers."""


class Calibration(StrictModel):
    """Agreement between confidence and accuracy.

    Source: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, "On Calibration of Modern Neural Networks",
    ICML 2017: the reliability diagram, and equation 3, the expected calibration error.
    """

    bins: tuple[CalibrationBin, ...] = Field(max_length=CALIBRATION_BINS)
    """Bins of equal width; empty ones are left out."""
    expected_error: float
    """Mean distance between accuracy and confidence of a bin, weighted by its answers."""


class LabelFigures(StrictModel):
    """Precision and recall of one of several labels."""

    name: str
    rows: int
    """Number of rows with the label."""
    precision: float | None
    """Share of rows predicted with the label that have it; None if none was predicted."""
    recall: float | None
    """Share of rows with the label that were predicted; None if no row has it."""
    f1: float


class Residuals(StrictModel):
    """One numeric column: a sample of labels and answers."""

    column: str
    points: tuple[tuple[float, float], ...] = Field(max_length=MAX_RESIDUALS)
    """(label, answer) pairs."""
    labels: int
    """Number of all labels."""
    mean_error: float
    """Mean of answer minus label over all answers; positive if answers are too high."""


class WorstRow(StrictModel):
    """A row of the test split with a large loss."""

    row: int = Field(ge=0)
    """Index of the row in the split."""
    loss: float
    """For classes the mean of -log p of the correct one; for several labels the mean binary
    cross-entropy; for numbers the mean distance in standard deviations of each column's labels."""
    truth: str
    answer: str
    confidence: float | None = None
    """Mean probability of the answers; None for numbers."""
    picture: str | None = None
    """Image input [1 or 3, height, width] as a PNG in Base64, at most 64 pixels wide and high."""
    values: dict[str, str] = Field(default={})
    """First values of each other input."""


class Examination(StrictModel):
    """Analysis of the checkpoint's answers to the test split."""

    rows: int
    confusion: Confusion | None = None
    """None if the answers are not classes."""
    calibration: Calibration | None = None
    """None if the answers have no probability."""
    label_figures: tuple[LabelFigures, ...] = Field(default=(), max_length=MAX_LABELS)
    """For rows with several labels: the label with the lowest F1 first."""
    residuals: tuple[Residuals, ...] = Field(default=(), max_length=MAX_COLUMNS)
    """For numeric answers."""
    left_out: int = Field(default=0, ge=0)
    """Number of labels or columns beyond the limit."""
    worst: tuple[WorstRow, ...] = Field(default=(), max_length=MAX_WORST_ROWS)
    """Rows in order of decreasing loss."""


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """Returns the text, or its beginning with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
