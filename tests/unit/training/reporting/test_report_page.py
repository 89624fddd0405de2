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
from training.reporting.plot import HEIGHT
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


def titles(page: str) -> list[str]:
    return re.findall(r'<figure class="plot"><figcaption>(.*?)</figcaption>', page)


def dots(plot: ElementTree.Element) -> list[tuple[str, dict[str, str]]]:
    """The tip and the attributes of every point, in order."""
    found = []
    for group in plot.iter(f"{SVG}g"):
        tip, circle = group.find(f"{SVG}title"), group.find(f"{SVG}circle")
        if circle is not None:
            assert tip is not None
            found.append((tip.text or "", dict(circle.attrib)))
    return found


def place(plot: ElementTree.Element, tip: str) -> tuple[float, float]:
    (found,) = (circle for text, circle in dots(plot) if text == tip)
    return round(float(found["cx"]), 6), round(float(found["cy"]), 6)


def front(plot: ElementTree.Element) -> list[tuple[float, float]]:
    """The points of the dashed line."""
    (path,) = (g[0] for g in plot.iter(f"{SVG}g") if g.get("class") == "front" and len(g))
    numbers = [float(number) for number in re.findall(r"[\d.]+", path.attrib["d"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def lines(plot: ElementTree.Element) -> int:
    return sum("line reactive" in path.get("class", "") for path in plot.iter(f"{SVG}path"))


def test_every_figure_of_the_table_is_on_the_page() -> None:
    page = report_page(ALL)
    for one in ALL.artifacts:
        assert "".join(f"<td>{cell}</td>" for cell in artifact_cells(ALL, one)) in page


def test_nothing_is_fetched_from_anywhere() -> None:
    for one in (ALL, IMAGES):
        page = report_page(one).replace("http://www.w3.org/2000/svg", "")
        page = page.replace('src="data:image/png;base64,', "")
        assert not re.search(r"http|src=|href=|url\(|@import|<script|<link", page)


def test_what_was_not_measured_is_in_no_plot() -> None:
    latency, metric = plots(report_page(ALL))
    names = [{tip for tip, _ in dots(plot)} for plot in (latency, metric)]
    assert names[0] == names[1] == {"checkpoint", "exact", "onnx", "onnx-int8", "broken"}
    assert lines(latency) == 4, "one of the five has a single point"


def test_faster_is_lower_and_more_to_the_left() -> None:
    quick = artifact("quick", latency_ms={1: 0.1}, metric=accuracy(0.9))
    slow = ALL.checkpoint.model_copy(update={"latency_ms": {1: 0.31}})
    latency, metric = plots(report_page(report(quick).model_copy(update={"checkpoint": slow})))
    assert place(latency, "quick")[1] > place(latency, "checkpoint")[1]
    assert place(metric, "quick")[0] < place(metric, "checkpoint")[0]
    assert place(metric, "quick")[1] > place(metric, "checkpoint")[1]  # less accurate


def test_a_plot_has_its_title_and_a_legend_for_those_who_do_not_see_it() -> None:
    page = report_page(ALL)
    assert titles(page) == [
        "Milliseconds of a run, by rows",
        "Accuracy in percent, by milliseconds a row",
    ]
    for plot, title in zip(plots(page), titles(page), strict=True):
        assert plot.get("role") == "img"
        assert plot[0].tag == f"{SVG}title"
        assert plot[0].text == title
    assert '<li class="color-0">checkpoint</li><li class="color-1">exact</li>' in page
    assert '<li class="color-4 hollow">broken</li>' in page


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
    assert front(metric) == [place(metric, "quick"), place(metric, "exact")]
    assert {tip for tip, circle in dots(metric) if "hollow" in circle["class"]} == {"lost"}


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
    found = pareto_front(points)
    assert found == sorted(set(found))
    assert found == sorted(found, key=lambda point: point[1])
    for cost, worth in points:
        assert any(c <= cost and w >= worth for c, w in found)


def test_every_cell_of_the_matrix_is_on_the_page() -> None:
    page = report_page(IMAGES)
    assert "<th><span>cat</span></th><th><span>dog</span></th>" in page
    row = re.search(r"<tr><th>dog</th>(.*?)</tr>", page, re.DOTALL)
    assert row is not None
    assert re.sub("<.*?>", " ", row[1]).split() == ["1", "1", "50.0", "%", "2"]
    shades = re.findall(r'class="(\w+)(?: dark)?" style="--share:([\d.]+)"', row[1])
    assert shades == [("wrong", "0.53"), ("right", "0.53")]


def test_the_worst_rows_are_pictures_and_the_worst_comes_first() -> None:
    figures = re.findall(r"<figure>(.*?)</figure>", report_page(IMAGES), re.DOTALL)
    assert [figure.count("data:image/png;base64,iVBOR") for figure in figures] == [1, 1, 1]
    assert "dog, taken for cat<br>confidence 88.1 %<br>row 1, loss 2.13<" in figures[0]
    assert "cat, right<br>" in "".join(figures)


def test_calibration_is_drawn_beside_the_line_on_which_it_is_right() -> None:
    page = report_page(IMAGES)
    error = IMAGES.examination and IMAGES.examination.calibration
    assert error
    assert f"Expected calibration error: {100 * error.expected_error:.1f} %" in page
    diagram = plots(page)[-1]
    assert [tip for tip, _ in dots(diagram)] == [
        "1 answers: confidence 88.1 %, 0.0 % right",
        "2 answers: confidence 97.3 %, 100.0 % right",
    ]
    (x0, y0), (x1, y1) = front(diagram)
    assert [float(c["cy"]) for _, c in dots(diagram)] == pytest.approx([y0, y1])
    assert [float(c["r"]) for _, c in dots(diagram)] == [6.9, 9.8]
    assert 0 <= x0 < x1
    assert 0 <= y1 < y0 <= HEIGHT  # the whole line lies within the plot


def test_curves_share_plots_by_their_units_and_the_best_epoch_is_marked() -> None:
    names = ("train/loss", "val/loss", "val/accuracy", "val/macro_f1", "val/rmse", "val/odd")
    curves = tuple(Curve(metric=name, points=((1, 0.5), (2, 0.25))) for name in names)
    phase = PhaseCurves(phase="train", epochs=2, curves=curves)
    page = report_page(ALL.model_copy(update={"curves": (phase,)}))
    assert titles(page)[2:] == [
        "Loss, by epoch",
        "Metrics in percent, by epoch",
        "Error, by epoch",
        "val/odd, by epoch",
    ]
    loss, shares = plots(page)[2:4]
    assert "val/accuracy, epoch 1: 50" in [tip for tip, _ in dots(shares)]
    assert front(loss)[0][0] == place(loss, "val/loss, epoch 1: 0.5")[0]  # epoch 1 is the best


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
    captions = re.findall(r"alt=.*?<figcaption>(.*?)</figcaption>", report_page(found), re.DOTALL)
    assert [caption.count("&lt;script&gt;") for caption in captions] == [4, 3, 3]
    assert not any("<script" in caption for caption in captions)


def test_a_picture_cannot_break_out_of_its_attribute() -> None:
    assert IMAGES.examination is not None
    worst = IMAGES.examination.worst[0].model_copy(update={"picture": '" onerror="alert(1)'})
    examination = IMAGES.examination.model_copy(update={"worst": (worst,)})
    page = report_page(IMAGES.model_copy(update={"examination": examination}))
    assert "base64,&#34; onerror=" in page


def test_a_report_of_before_is_still_read_and_shown() -> None:
    old = ALL.model_dump(mode="json", exclude={"curves", "examination"})
    found = Report.model_validate(old)
    assert found == ALL
    assert "<h2>" not in report_page(found)


def test_the_file_holds_the_curves_and_the_examination() -> None:
    assert Report.model_validate_json(IMAGES.to_json()) == IMAGES
