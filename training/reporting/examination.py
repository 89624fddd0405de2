"""What a report says about the answers to the test split: the records, and how large they may be.

Rule kept here: a report stays small whatever the data is, so that it can be read as one page and
one JSON; each limit is below, and where it cut something the report says how much.
"""

from pydantic import Field

from model_store.strict import StrictModel

MAX_MATRIX_CLASSES = 30
"""With more classes the most confused pairs stand in for the matrix."""
MAX_CONFUSED_PAIRS = 30
CALIBRATION_BINS = 15
"""As many as in the paper that `Calibration` names."""
MAX_LABELS = 50
"""Labels of a table of precision and recall; those with the lowest F1 come first."""
MAX_COLUMNS = 4
"""Columns of numbers whose residuals are shown; the first ones."""
MAX_RESIDUALS = 400
"""Points of each column, evenly spread over the rows."""
MAX_WORST_ROWS = 12
LONGEST_TEXT = 200
"""Characters of a name or a value; the rest is cut."""


class ConfusedPair(StrictModel):
    """Labels of one class that were answered with another."""

    truth: str
    answer: str
    count: int = Field(ge=1)
    """How often."""
    labels: int = Field(ge=1)
    """How many labels are of this class in all."""


class Confusion(StrictModel):
    """Which class was answered for which."""

    classes: tuple[str, ...] = Field(default=(), max_length=MAX_MATRIX_CLASSES)
    """In order; none where there are too many for a matrix."""
    counts: tuple[tuple[int, ...], ...] = ()
    """[truth][answer], in the order of `classes`."""
    pairs: tuple[ConfusedPair, ...] = Field(default=(), max_length=MAX_CONFUSED_PAIRS)
    """In place of the matrix, the most frequent first."""


class CalibrationBin(StrictModel):
    """Answers about as sure as each other."""

    low: float
    """They are surer than this, up to `high`; of 0 to 1."""
    high: float
    count: int = Field(ge=1)
    confidence: float
    """The mean probability that the model gave its answer."""
    accuracy: float
    """The share that is right."""


class Calibration(StrictModel):
    """Whether answers are right as often as the model is sure of them.

    Source: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, "On Calibration of Modern Neural Networks",
    ICML 2017: the reliability diagram, and equation 3, the expected calibration error.
    """

    bins: tuple[CalibrationBin, ...] = Field(max_length=CALIBRATION_BINS)
    """Of one width each; those without answers are left out."""
    expected_error: float
    """The mean distance of a bin's accuracy from its confidence, by how many answers it has."""


class LabelFigures(StrictModel):
    """How well one of several labels is found."""

    name: str
    rows: int
    """How many have it."""
    precision: float | None
    """Share of the rows answered with it that have it; None where no row was."""
    recall: float | None
    """Share of the rows that have it that were answered with it; None where no row has it."""
    f1: float


class Residuals(StrictModel):
    """One column of numbers: some of the labels, and what was answered."""

    column: str
    points: tuple[tuple[float, float], ...] = Field(max_length=MAX_RESIDUALS)
    """(label, answer) each."""
    labels: int
    """How many there are in all."""
    mean_error: float
    """Of all answers, each less its label: how far they lie too high."""


class WorstRow(StrictModel):
    """A row of the test split whose answer is far off."""

    row: int = Field(ge=0)
    """Its place in the split."""
    loss: float
    """Of classes the mean of -log p of the right one; of several labels the mean binary cross
    entropy; of numbers the mean distance in standard deviations of each column's labels."""
    truth: str
    answer: str
    confidence: float | None = None
    """The mean probability of what was answered; None for numbers."""
    picture: str | None = None
    """Of an image [1 or 3, height, width], a PNG in Base64, at most 64 pixels wide and high."""
    values: dict[str, str] = Field(default={})
    """Otherwise the first values of each input."""


class Examination(StrictModel):
    """What the checkpoint answers to the test split, looked at from several sides."""

    rows: int
    confusion: Confusion | None = None
    """None where the answers are no classes."""
    calibration: Calibration | None = None
    """None where they have no probability."""
    label_figures: tuple[LabelFigures, ...] = Field(default=(), max_length=MAX_LABELS)
    """Where a row has several labels, the one that is found worst first."""
    residuals: tuple[Residuals, ...] = Field(default=(), max_length=MAX_COLUMNS)
    """Where the answers are numbers."""
    left_out: int = Field(default=0, ge=0)
    """Labels or columns past the limit."""
    worst: tuple[WorstRow, ...] = Field(default=(), max_length=MAX_WORST_ROWS)
    """The largest loss first."""


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
