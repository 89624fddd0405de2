"""The page of a report: the same figures as the table, and plots, with nothing to fetch."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training.test_report import ALL, artifact, report
from training.report import AutoReport, NotTried, artifact_cells
from training.report_page import pareto_front, report_page

SVG = "{http://www.w3.org/2000/svg}"


def plots(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page)]


def test_every_figure_of_the_table_is_on_the_page() -> None:
    page = report_page(ALL)
    for one in ALL.artifacts:
        assert "".join(f"<td>{cell}</td>" for cell in artifact_cells(ALL, one)) in page


def test_nothing_is_fetched_from_anywhere() -> None:
    page = report_page(ALL).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"http|src=|href=|url\(|@import", page)


def test_what_was_not_measured_is_in_no_plot() -> None:
    latency, accuracy = plots(report_page(ALL))
    names = [{title.text for title in plot.iter(f"{SVG}title")} for plot in (latency, accuracy)]
    assert names[0] == names[1] == {"checkpoint", "exact", "onnx", "onnx-int8", "broken"}
    assert len(list(latency.iter(f"{SVG}polyline"))) == 5


def test_faster_is_lower_and_more_to_the_left() -> None:
    quick = artifact("quick", latency_ms={1: 0.1, 32: 0.2}, accuracy=0.9)
    latency, accuracy = plots(report_page(report(quick)))

    def place(plot: ElementTree.Element, name: str) -> tuple[float, float]:
        circle = next(
            c
            for c in plot.iter(f"{SVG}circle")
            if [t.text for t in c.iter(f"{SVG}title")] == [name]
        )
        return float(circle.attrib["cx"]), float(circle.attrib["cy"])

    assert place(latency, "quick")[1] > place(latency, "checkpoint")[1]
    assert place(accuracy, "quick")[0] < place(accuracy, "checkpoint")[0]
    assert place(accuracy, "quick")[1] > place(accuracy, "checkpoint")[1]  # less accurate


def test_names_are_not_taken_for_markup() -> None:
    odd = report(artifact("onnx", refusal="<script>alert(1)</script>"))
    assert "<script>" not in report_page(odd)


def test_the_front_is_joined_and_what_is_not_published_is_hollow() -> None:
    quick = artifact("quick", latency_ms={1: 0.01}, accuracy=0.9)
    exact = artifact("exact", latency_ms={1: 0.1}, accuracy=0.95)
    slow = artifact("slow", latency_ms={1: 1.0}, accuracy=0.94)
    lost = artifact("lost", latency_ms={1: 0.001}, accuracy=1.0, dropped="dominated by quick")
    _, accuracy = plots(report_page(report(slow, exact, lost, quick)))
    (front,) = accuracy.iter(f"{SVG}polyline")
    dots = {
        circle[0].text: (f"{circle.attrib['cx']},{circle.attrib['cy']}", circle.attrib["fill"])
        for circle in accuracy.iter(f"{SVG}circle")
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
