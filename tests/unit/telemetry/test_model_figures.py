"""Figures of versions for the statistics calls: counted once, and added over processes."""

import time

import pytest

from services.errors import BackendError, QueueFullError, ServingError
from services.gateway.edges.administration.message_document import document_of
from services.gateway.edges.administration.statistics import statistics_message
from services.gateway.request_accounting import RequestAccounting
from services.queueing.directory import Directory
from services.queueing.records import Lane
from services.telemetry.metrics import Metrics
from services.telemetry.model_figures import (
    INFER_S,
    MAX_PLACES,
    MAX_SIZES,
    RunFigures,
    VersionFigures,
    added,
    decode_figures,
    encode_figures,
)

LANE = Lane("m", 1)


def figures_of(metrics: Metrics) -> VersionFigures:
    (found,) = metrics.figures.all("m")
    return found


def test_requests_are_those_of_the_metrics() -> None:
    metrics = Metrics("0")
    accounting = RequestAccounting(metrics, Directory(), access_log=False)
    for seconds in (0.25, 0.5):
        accounting.count(LANE, "rest", "200", seconds)
    accounting.count(LANE, "grpc", "OK", 1.0)
    for code, error in (
        ("500", BackendError("b")), ("503", QueueFullError("f")), ("499", ServingError("gone")),
        ("400", ServingError("bad")),
    ):  # fmt: skip
        accounting.count_failed(LANE, "rest", code, 2.0, error)
    accounting.count_failed(None, "rest", "404", 2.0, ServingError("unknown"))
    found = figures_of(metrics)
    assert (found.answered, found.answered_s) == (3, 1.75)
    each = dict.fromkeys(("BACKEND", "REJECTED", "CANCELED", "OTHER"), (1, 2.0))
    assert found.failed == each


def test_a_version_without_requests_has_no_figures() -> None:
    metrics = Metrics("0")
    RequestAccounting(metrics, Directory(), access_log=False).expect(LANE)
    assert not [*metrics.figures.all()]


def test_a_time_of_runs_counts_once_for_each_request() -> None:
    runs = RunFigures()
    for seconds in (0.5, 1.5):
        runs.ran(6, 3, time.monotonic())[INFER_S] += seconds
    runs.ran(1, 1, time.monotonic())[INFER_S] += 4.0
    found = VersionFigures("m", "1", sizes=runs.sizes)
    assert found.of_requests_s(INFER_S) == 3 * 2.0 + 4.0


def test_sizes_and_places_have_limits() -> None:
    runs = RunFigures()
    for rows in range(1, 3 * MAX_SIZES):
        runs.ran(rows, 1, 1.0)
    assert len(runs.sizes) <= MAX_SIZES + 2
    for place in range(2 * MAX_PLACES):
        runs.gave(place, 1, 0.5)
        runs.ended(place)
    assert len(runs.places) == MAX_PLACES


def test_figures_of_processes_add_up() -> None:
    one = VersionFigures(
        "m", "1", 2, 1.0, {"OTHER": (1, 0.5)}, 3, 0.5, 8, 2, 100.0,
        {4: [2, 2, 0.1, 0.2, 0.3]}, [[1, 0.5, 0]],
    )  # fmt: skip
    other = VersionFigures(
        "m", "1", 1, 2.0, {"OTHER": (1, 1.0), "BACKEND": (2, 1.0)}, 1, 0.25, 5, 2, 200.0,
        {4: [1, 1, 1.0, 1.0, 1.0], 1: [1, 1, 0, 0, 0]}, [[1, 0.5, 1], [1, 1.0, 0]],
    )  # fmt: skip
    travelled = decode_figures(encode_figures([other, VersionFigures("n", "1")]))
    found = added([[one], travelled])
    assert found.keys() == {("m", "1"), ("n", "1")}
    both = found["m", "1"]
    assert (both.answered, both.answered_s, both.queued, both.queued_s) == (3, 3.0, 4, 0.75)
    assert (both.rows, both.runs, both.last_run_at) == (13, 4, 200.0)
    assert both.failed == {"OTHER": (2, 1.5), "BACKEND": (2, 1.0)}
    assert both.sizes == {
        4: pytest.approx([3, 3, 1.1, 1.2, 1.3]), 1: [1, 1, 0, 0, 0]
    }  # fmt: skip
    assert both.places == [[2, 1.0, 1], [1, 1.0, 0]]
    assert one.answered == 2, "what is added is not changed"


def test_the_message() -> None:
    figures = VersionFigures(
        "m", "1", 2, 1.0, {"OTHER": (1, 0.5)}, 3, 0.25, 8, 2, 100.5,
        {4: [2, 3, 0.5, 1.0, 0.25]}, [[1, 0.5, 0], [0, 0, 1]],
    )  # fmt: skip
    document = document_of(statistics_message(figures))
    stats = document.pop("inference_stats")
    assert stats["success"] == {"count": 2, "ns": 10**9}
    assert stats["fail"] == {"count": 1, "ns": 5 * 10**8}
    assert stats["queue"] == {"count": 3, "ns": 25 * 10**7}
    assert stats["compute_infer"] == {"count": 3, "ns": 15 * 10**8}
    assert stats["cache_hit"] == stats["cache_miss"] == {"count": 0, "ns": 0}
    first, second = (document["response_stats"][place] for place in ("0", "1"))
    assert first["success"] == first["compute_infer"] == {"count": 1, "ns": 5 * 10**8}
    assert (second["success"]["count"], second["empty_response"]["count"]) == (0, 1)
    assert document == {
        "name": "m", "version": "1", "last_inference": 100_500, "inference_count": 8,
        "execution_count": 2, "memory_usage": [], "response_stats": document["response_stats"],
        "batch_stats": [{
            "batch_size": 4, "compute_input": {"count": 2, "ns": 5 * 10**8},
            "compute_infer": {"count": 2, "ns": 10**9},
            "compute_output": {"count": 2, "ns": 25 * 10**7},
        }],
    }  # fmt: skip
