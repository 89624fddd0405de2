"""The report: one verdict a row, the same figures for people and for machines."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from model_store.metric import MeasuredMetric
from model_store.tolerance import Tolerance
from training.reporting.report import (
    ArtifactReport,
    CheckpointReport,
    Report,
    artifact_cells,
    print_table,
)


def accuracy(value: float, interval: tuple[float, float] | None = None) -> MeasuredMetric:
    return MeasuredMetric(name="accuracy", value=value, interval=interval, better="higher")


def artifact(name: str, **changes: Any) -> ArtifactReport:
    fields: dict[str, Any] = {
        "name": name,
        "kind": "onnx",
        "precision": "fp32",
        "file": f"{name}.onnx",
        "tolerance": Tolerance(max_abs_difference=1, min_agreement=1),
        "refusal": None,
        "size_bytes": 44_000,
        "max_abs_difference": 2.4e-7,
        "agreement": 1.0,
        "metric": accuracy(0.986),
        "latency_ms": {1: 0.12, 8: 0.5, 32: 2.0},
        "peak_memory_bytes": 11_000_000,
        **changes,
    }
    return ArtifactReport(**fields)


def report(*artifacts: ArtifactReport) -> Report:
    return Report(
        run="r",
        model="m",
        epochs=2,
        best_epoch=1,
        metrics={"test/accuracy": 0.986},
        checkpoint=CheckpointReport(
            size_bytes=40_000, metric=accuracy(0.986), latency_ms={1: 0.31, 8: 1.0, 32: 4.1}
        ),
        artifacts=artifacts,
    )


QUICK = artifact("onnx-int8", agreement=0.997, latency_ms={1: 0.5, 8: 0.6, 32: 0.7})
REFUSED = artifact("broken", refusal="too far", max_abs_difference=None, latency_ms={1: 1e-3})
UNMADE = artifact(
    "unmade",
    refusal="no file",
    size_bytes=None,
    agreement=None,
    metric=None,
    latency_ms={},
    peak_memory_bytes=None,
)
ALL = report(artifact("exact", max_abs_difference=0.0), artifact("onnx"), QUICK, REFUSED, UNMADE)


def test_every_row_has_its_verdict_and_its_figures() -> None:
    screen = io.StringIO()
    print_table(ALL, Console(file=screen))
    heading, *lines = screen.getvalue().splitlines()
    names = ["artifact", "parity", "agreement", "accuracy", "size", "memory"]
    assert heading.split()[:6] == names
    rows = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines}
    assert list(rows) == ["checkpoint", "exact", "onnx", "onnx-int8", "broken", "unmade"]
    assert rows["checkpoint"].split() == [
        *(
            "-",
            "-",
            "98.6",
            "%",
            "40",
            "KB",
            "-",
            "0.310",
            "ms",
            "1.0",
            "ms",
            "4.1",
            "ms",
            "reference",
        )
    ]
    assert rows["exact"].startswith("0  ")
    assert rows["onnx"].startswith("2.4e-07      100 %    98.6 %  44 KB  11.0 MB  0.120 ms")
    assert rows["onnx"].endswith("verified")
    assert "99.7 %" in rows["onnx-int8"]
    assert rows["onnx-int8"].endswith("verified, fastest")
    assert rows["broken"].endswith("refused: too far")
    assert rows["unmade"].endswith("refused: no file")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_verdict_is_readable_on_a_narrow_terminal(width: int) -> None:
    screen = io.StringIO()
    print_table(ALL, Console(file=screen, width=width, force_terminal=True, no_color=True))
    text = re.sub(r"\x1b\[\d*m", "", screen.getvalue())
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    for said in ("verdict", "reference", "verified, fastest", "refused: no", "98.6 %", "0.310 ms"):
        assert said in text
    assert ("too narrow for: agreement, " in text) == (width <= 80)
    assert ("agreement" in text.splitlines()[0]) == (width > 80)


def test_the_fastest_is_the_one_a_server_would_choose() -> None:
    assert ALL.fastest() == QUICK  # by milliseconds a row, and never a refused one
    assert report(REFUSED).fastest() is None


def test_the_file_holds_everything() -> None:
    assert Report.model_validate_json(ALL.to_json()) == ALL


def test_what_lost_is_in_the_report_and_not_published() -> None:
    better = "dominated by onnx: that is better in latency, and worse in nothing"
    lost = artifact("onnx-int8", method="static", dropped=better, latency_ms={1: 1e-3})
    other = artifact("onnx-int8", method="dynamic", refusal="too far")
    found = report(artifact("onnx"), lost, other)
    assert [one.name for one in found.verified()] == ["onnx", "onnx-int8"]
    assert [one.name for one in found.published()] == ["onnx"]
    fastest = found.fastest()
    assert fastest is not None
    assert fastest.name == "onnx"
    assert artifact_cells(found, lost)[-1] == f"dropped: {better}"
    labels = [found.label(one) for one in found.artifacts]
    assert labels == ["onnx", "onnx-int8 static", "onnx-int8 dynamic"]
    assert Report.model_validate_json(found.to_json()) == found


def test_a_method_is_named_only_where_it_tells_two_apart() -> None:
    one = artifact("onnx-int8", method="static")
    assert report(artifact("onnx"), one).label(one) == "onnx-int8"
