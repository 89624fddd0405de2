"""Metrics of several processes in one scrape."""

import math
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.openmetrics import exposition

from services.telemetry.merged_metrics import (
    MergedCollector,
    MetricFamily,
    decode_metrics,
    encode_metrics,
    lasting,
    merged,
)
from services.telemetry.metrics import Metrics


def process(requests: float, depth: float, workers: float = math.nan) -> list[MetricFamily]:
    """Returns the metrics of a process."""
    metrics = Metrics("1.0")
    metrics.requests.labels("m", "1", "rest", "200").inc(requests)
    metrics.request_seconds.labels("m", "1", "rest").observe(0.003, "ab" * 16)
    metrics.in_flight.set(depth)
    metrics.fleet_workers.set(workers)
    return decode_metrics(encode_metrics(metrics.registry))


def values(families: list[MetricFamily]) -> dict[str, float]:
    """Returns the samples by name; histograms with their bucket."""
    return {
        sample.name + str(dict(sample.labels).get("le", "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_counts_are_summed_and_facts_are_not() -> None:
    found = values(merged([process(2, 3), process(5, 4, workers=1)]))
    assert found["flambeau_requests_total"] == 7
    assert found["flambeau_in_flight_requests"] == 7
    assert found["flambeau_request_duration_seconds_bucket0.0025"] == 0
    assert found["flambeau_request_duration_seconds_bucket0.005"] == 2
    assert found["flambeau_request_duration_seconds_count"] == 2
    assert found["flambeau_build_info"] == 1
    assert found["python_info"] == 1
    assert found["flambeau_fleet_workers"] == 1, "the other process does not know"
    assert found["process_start_time_seconds"] < 2**31
    assert math.isnan(values(merged([process(0, 0)] * 2))["flambeau_fleet_workers"])


def test_merging_changes_none_of_its_inputs() -> None:
    one = process(2, 3)
    before = values(one)
    merged([one, process(5, 4)])
    assert str(values(one)) == str(before)


def test_counters_of_an_ended_process_last_and_its_gauges_do_not() -> None:
    found = values(merged([process(2, 3), lasting(process(5, 4))]))
    assert found["flambeau_requests_total"] == 7
    assert found["flambeau_in_flight_requests"] == 3


def test_exposition_is_that_of_a_single_process() -> None:
    """Names, types, texts and exemplars."""
    own, whole = CollectorRegistry(), CollectorRegistry()
    Counter("flambeau_spans", "Spans.", ("outcome",), registry=own).labels("kept").inc()
    Gauge("flambeau_depth", "Depth.", registry=own).set(2)
    metrics = Metrics("1.0")
    metrics.request_seconds.labels("m", "1", "rest").observe(0.003, "ab" * 16)
    for registry in (own, metrics.registry):
        whole = CollectorRegistry()
        families = decode_metrics(encode_metrics(registry))
        whole.register(MergedCollector(lambda families=families: families))  # type: ignore[misc]
        assert _lines(prometheus_client.generate_latest(whole)) == _lines(
            prometheus_client.generate_latest(registry)
        )
        latest: Any = exposition.generate_latest
        assert _lines(latest(whole)) == _lines(latest(registry))


def _lines(text: bytes) -> list[str]:
    """Returns the lines but those of the process itself, whose values change."""
    return [line for line in text.decode().splitlines() if not line.startswith("process_")]
