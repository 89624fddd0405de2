"""Plots and templates: hostile text, what is left out, and when the libraries are imported."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from jinja2 import UndefinedError

from training.reporting.plot import Mark, Plot
from training.reporting.templates import render

HOSTILE = "</title><script>alert(1)</script>\x00\x1b\"'&$x^2$"


def test_hostile_text_is_escaped_and_leaves_a_plot_well_formed() -> None:
    mark = Mark(HOSTILE, ((1.0, 2.0), (3.0, 4.0)))
    plot = Plot(HOSTILE, [mark], lines=True).html()
    assert "<script" not in plot
    svg = ElementTree.fromstring(Plot(HOSTILE, [mark]).svg())
    texts = [element.text for element in svg.iter() if element.tag.endswith("title")]
    assert texts == ["</title><script>alert(1)</script>\"'&$x^2$"] * 3


def test_a_plot_is_the_same_each_time() -> None:
    marks = [Mark("a", ((1.0, 2.0), (3.0, 4.0)))]
    assert Plot("t", marks).svg() == Plot("t", marks).svg()
    assert "<style" not in Plot("t", marks).svg()
    assert "<!--" not in Plot("t", marks).svg()


def test_without_points_there_is_no_plot() -> None:
    assert Plot("t", [Mark("a", ())]).html() == ""


SPREADS = [
    (0.0, 0.0), (-3.0, 0.0), (5.0, 5.0), (1e-12, 1e12), (98.6, 98.6 + 1e-14), (1e16, 1e16 + 2),
    (-3e38, 3e38),
]  # fmt: skip


@pytest.mark.parametrize("values", SPREADS)
@pytest.mark.parametrize("log", [False, True])
def test_every_point_lies_within_the_picture(values: tuple[float, float], log: bool) -> None:
    mark = Mark("a", tuple(zip(values, values, strict=True)))
    svg = ElementTree.fromstring(Plot("t", [mark], log_x=log, log_y=log).svg())
    places = [element.attrib for element in svg.iter() if element.tag.endswith("circle")]
    assert len(places) == 2
    for place in places:
        assert 0 <= float(place["cx"]) <= float(svg.attrib["width"])
        assert 0 <= float(place["cy"]) <= float(svg.attrib["height"])


def test_points_that_are_no_numbers_are_left_out() -> None:
    points = ((1.0, float("nan")), (float("inf"), 1.0), (2.0, 3.0))
    mark = Mark("a", points, tips=("first", "second", "third"))
    plot = Plot("t", [mark], joined=points).html()
    assert re.findall("<title>(.*?)</title>", plot) == ["t", "third"]
    assert Plot("t", [Mark("a", points[:2])]).html() == ""


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render("reporting/page.html", {})


def test_training_starts_without_the_libraries_of_pages() -> None:
    program = (
        "import sys, training.pipeline, training.sweep.search;"
        "print(sorted({'jinja2', 'pygal'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


def test_pygal_leaves_no_import_hook() -> None:
    Plot("t", [Mark("a", ((1.0, 2.0),))]).svg()
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "pygal"]
