"""The page of a report: the same figures as the table, and plots, with nothing to fetch."""

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training.reporting.test_report import ALL, accuracy, artifact, report
from training.metrics.task_metric import TaskMetric
from training.reporting.curves import Curve, PhaseCurves
from training.reporting.examiner import examine
from training.reporting.plot import BOTTOM, HEIGHT, LEFT
from training.reporting.report import AutoReport, NotTried, Report, artifact_cells
from training.reporting.report_page import pareto_front, report_page

SCRIPT = "<script>alert('1')</script>"
EVIL = f'"{SCRIPT}'


def with_answers(*arguments: Any, **changes: Any) -> Report:
    return ALL.model_copy(update={"examination": examine(*arguments), **changes})


LOGITS = np.array([[3, 0], [2, 0], [-1, 4]], np.float32)
IMAGES = with_answers(
    TaskMetric(), LOGITS, np.array([0, 1, 1]), ("cat", "dog"), {"image": np.zeros((3, 1, 8, 8))}
)
SVG = "{http://www.w3.org/2000/svg}"


def plots(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page)]


def test_every_figure_of_the_table_is_on_the_page() -> None:
    page = report_page(ALL)
    for one in ALL.artifacts:
        assert "".join(f"<td>{cell}</td>" for cell in artifact_cells(ALL, one)) in page


def test_nothing_is_fetched_from_anywhere() -> None:
    for one in (ALL, IMAGES):
        page = report_page(one).replace("http://www.w3.org/2000/svg", "")
        page = page.replace("src='data:image/png;base64,", "")
        assert not re.search(r"http|src=|href=|url\(|@import", page)


def test_what_was_not_measured_is_in_no_plot() -> None:
    latency, metric = plots(report_page(ALL))
    names = [{title.text for title in plot.iter(f"{SVG}title")} for plot in (latency, metric)]
    assert names[0] == names[1] == {"checkpoint", "exact", "onnx", "onnx-int8", "broken"}
    assert len(list(latency.iter(f"{SVG}polyline"))) == 5


def test_faster_is_lower_and_more_to_the_left() -> None:
    quick = artifact("quick", latency_ms={1: 0.1, 32: 0.2}, metric=accuracy(0.9))
    latency, metric = plots(report_page(report(quick)))

    def place(plot: ElementTree.Element, name: str) -> tuple[float, float]:
        circle = next(
            c
            for c in plot.iter(f"{SVG}circle")
            if [t.text for t in c.iter(f"{SVG}title")] == [name]
        )
        return float(circle.attrib["cx"]), float(circle.attrib["cy"])

    assert place(latency, "quick")[1] > place(latency, "checkpoint")[1]
    assert place(metric, "quick")[0] < place(metric, "checkpoint")[0]
    assert place(metric, "quick")[1] > place(metric, "checkpoint")[1]  # less accurate


def test_names_are_not_taken_for_markup() -> None:
    odd = report(artifact("onnx", refusal="<script>alert(1)</script>"))
    assert "<script>" not in report_page(odd)


def test_the_front_is_joined_and_what_is_not_published_is_hollow() -> None:
    quick = artifact("quick", latency_ms={1: 0.01}, metric=accuracy(0.9))
    exact = artifact("exact", latency_ms={1: 0.1}, metric=accuracy(0.95))
    slow = artifact("slow", latency_ms={1: 1.0}, metric=accuracy(0.94))
    lost = artifact(
        "lost", latency_ms={1: 0.001}, metric=accuracy(1.0), dropped="dominated by quick"
    )
    _, metric = plots(report_page(report(slow, exact, lost, quick)))
    (front,) = metric.iter(f"{SVG}polyline")
    dots = {
        circle[0].text: (f"{circle.attrib['cx']},{circle.attrib['cy']}", circle.attrib["fill"])
        for circle in metric.iter(f"{SVG}circle")
        if len(circle)
    }
    assert front.attrib["points"].split() == [dots["quick"][0], dots["exact"][0]]
    assert {name for name, (_, fill) in dots.items() if fill == "white"} == {"lost"}


def test_what_was_not_tried_is_on_the_page_with_its_reason() -> None:
    left_out = NotTried(name="onnx-int8", method="dynamic", reason="it has <convolutions>")
    auto = AutoReport(budget_s=60, spent_s=12.3, not_tried=(left_out,))
    page = report_page(ALL.model_copy(update={"auto": auto}))
    assert "<td>onnx-int8 dynamic</td><td>it has &lt;convolutions&gt;</td>" in page
    assert "5 candidates took 12 s, of a budget of 60 s" in page
    assert "not tried" not in report_page(ALL)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9))))
def test_nothing_on_the_front_is_both_slower_and_less_accurate(
    points: list[tuple[float, float]],
) -> None:
    front = pareto_front(points)
    assert front == sorted(set(front))
    assert front == sorted(front, key=lambda point: point[1])
    for cost, worth in points:
        assert any(c <= cost and w >= worth for c, w in front)


def test_every_cell_of_the_matrix_is_on_the_page() -> None:
    page = report_page(IMAGES)
    assert "<th><span>cat</span></th><th><span>dog</span></th>" in page
    row = re.search(r"<tr><th>dog</th>(.*?)</tr>", page)
    assert row is not None
    assert re.sub("<.*?>", " ", row[1]).split() == ["1", "1", "50.0", "%", "2"]
    assert re.findall(r"rgba\((\d+)", row[1]) == ["192", "58"]  # wrong, then right


def test_the_worst_rows_are_pictures_and_the_worst_comes_first() -> None:
    figures = re.findall(r"<figure>(.*?)</figure>", report_page(IMAGES))
    assert [figure.count("data:image/png;base64,iVBOR") for figure in figures] == [1, 1, 1]
    assert "dog, taken for cat<br>confidence 88.1 %<br>row 1, loss 2.13<" in figures[0]
    assert "cat, right<br>" in "".join(figures)


def test_calibration_is_drawn_beside_the_line_on_which_it_is_right() -> None:
    page = report_page(IMAGES)
    error = IMAGES.examination and IMAGES.examination.calibration
    assert error
    assert f"Expected calibration error: {100 * error.expected_error:.1f} %" in page
    diagram = plots(page)[-1]
    titles = [title.text for title in diagram.iter(f"{SVG}title")]
    assert titles == [
        "1 answers: confidence 88.1 %, 0.0 % right",
        "2 answers: confidence 97.3 %, 100.0 % right",
    ]
    (ideal,) = (line for line in diagram.iter(f"{SVG}polyline") if line.get("class") == "front")
    (x0, y0), (x1, y1) = (map(float, end.split(",")) for end in ideal.attrib["points"].split())
    high = [float(c.attrib["cy"]) for c in diagram.iter(f"{SVG}circle") if len(c)]
    assert high == pytest.approx([y0, y1])
    assert LEFT <= x0 < x1
    assert y1 < y0 <= HEIGHT - BOTTOM  # the whole line lies within the axes


def test_curves_share_plots_by_their_units_and_the_best_epoch_is_marked() -> None:
    names = ("train/loss", "val/loss", "val/accuracy", "val/macro_f1", "val/rmse", "val/odd")
    curves = tuple(Curve(metric=name, points=((1, 0.5), (2, 0.25))) for name in names)
    phase = PhaseCurves(phase="train", epochs=2, curves=curves)
    drawn = plots(report_page(ALL.model_copy(update={"curves": (phase,)})))[2:]
    found = [next(text.text for text in plot.iter(f"{SVG}text")) for plot in drawn]
    assert found == [
        "Loss, by epoch",
        "Metrics in percent, by epoch",
        "Error, by epoch",
        "val/odd, by epoch",
    ]
    assert "val/accuracy, epoch 1: 50" in [t.text for t in drawn[1].iter(f"{SVG}title")]
    best = next(line for line in drawn[0].iter(f"{SVG}polyline") if line.get("class") == "front")
    first = next(c for c in drawn[0].iter(f"{SVG}circle") if len(c))
    assert best.attrib["points"].split()[0].split(",")[0] == first.attrib["cx"]  # epoch 1


def test_what_was_left_out_is_said() -> None:
    curve = Curve(metric="val/loss", points=((1, 0.5), (9, 0.25)))
    phase = PhaseCurves(phase="train", epochs=9, curves=(curve,))
    page = report_page(ALL.model_copy(update={"curves": (phase,)}))
    assert "2 of 9 epochs are shown" in page
    numbers = np.zeros((500, 6), np.float32)
    page = report_page(with_answers(TaskMetric("regression"), numbers, numbers))
    assert "2 more columns are not shown" in page
    assert "400 of 500 are drawn" in page
    labels = np.zeros((3, 51), np.float32)
    page = report_page(with_answers(TaskMetric("multi_label"), labels, labels))
    assert "These are the worst 50; 1 are not shown." in page


@pytest.mark.parametrize("task", ["classes", "many classes", "multi_label", "regression"])
def test_names_and_values_of_strangers_are_not_taken_for_markup(task: str) -> None:
    inputs = {EVIL: np.array([EVIL.encode(), EVIL], object)}
    labels: Any = np.array([1, 1])
    logits = np.eye(2, dtype=np.float32)
    names: tuple[str, ...] = (EVIL, SCRIPT)
    if task == "many classes":
        logits, names = np.eye(40, dtype=np.float32)[:2], (EVIL,) * 40
    elif task != "classes":
        labels = np.ones((2, 2), np.float32)
    metric = TaskMetric("classes" if task == "many classes" else task)  # type: ignore[arg-type]
    evil = PhaseCurves(phase=EVIL, epochs=1, curves=(Curve(metric=EVIL, points=((1, 1.0),)),))
    page = report_page(with_answers(metric, logits, labels, names, inputs, curves=(evil,)))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert EVIL not in page


def test_what_stands_below_a_picture_is_not_taken_for_markup() -> None:
    inputs = {"image": np.zeros((3, 1, 8, 8)), SCRIPT: np.array([EVIL] * 3, object)}
    found = with_answers(TaskMetric(), LOGITS, np.array([0, 1, 1]), (EVIL, SCRIPT), inputs)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", report_page(found))
    assert [caption.count("&lt;script&gt;") for caption in captions] == [4, 3, 3]
    assert not any("<script" in caption for caption in captions)


def test_a_picture_cannot_break_out_of_its_attribute() -> None:
    assert IMAGES.examination is not None
    worst = IMAGES.examination.worst[0].model_copy(update={"picture": "' onerror='alert(1)"})
    examination = IMAGES.examination.model_copy(update={"worst": (worst,)})
    page = report_page(IMAGES.model_copy(update={"examination": examination}))
    assert "' onerror='" not in page


def test_a_report_of_before_is_still_read_and_shown() -> None:
    old = ALL.model_dump(mode="json", exclude={"curves", "examination"})
    found = Report.model_validate(old)
    assert found == ALL
    assert "<h2>" not in report_page(found)


def test_the_file_holds_the_curves_and_the_examination() -> None:
    assert Report.model_validate_json(IMAGES.to_json()) == IMAGES
