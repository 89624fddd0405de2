"""Metrics under TorchServe's names."""

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from model_store.archives.handler_calls import Measurement
from services.telemetry import torchserve_metrics
from services.telemetry.merged_metrics import decode_metrics, encode_metrics, merged
from services.telemetry.torchserve_metrics import TorchServeMetrics


def measured(name: str, value: float = 1.0, kind: str = "gauge", **dimensions: str) -> Measurement:
    return Measurement(name, kind, "ms", value, dimensions)


class Page:
    """The metrics of a server, and its page."""

    def __init__(self, *, with_host: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.metrics = TorchServeMetrics(self.registry, with_host=with_host)

    def values(self) -> dict[str, float]:
        """Returns the samples of the page by name and labels, without the host's name."""
        text = generate_latest(self.registry).decode()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        pairs = (line.rpartition(" ") for line in lines)
        without = re.compile('[Hh]ostname="[^"]*",?')
        return {without.sub("", name).replace(",}", "}"): float(value) for name, _, value in pairs}


def test_requests_have_the_labels_of_torchserve() -> None:
    page = Page()
    series = page.metrics.of("m", "")
    series.requests.value += 2
    series.latency_us.value += 150.5
    page.metrics.of("m", "1.0").queue_us.value += 7
    found = page.values()
    default = '{model_name="m",model_version="default"}'
    assert found[f"ts_inference_requests_total{default}"] == 2
    assert found[f"ts_inference_latency_microseconds{default}"] == 150.5
    version = '{model_name="m",model_version="1.0"}'
    assert found[f"ts_queue_latency_microseconds{version}"] == 7
    assert 'hostname="' in generate_latest(page.registry).decode()


def test_responses_count_by_hundreds() -> None:
    page = Page()
    for status in (200, 202, 299, 302, 400, 404, 500, 503, 599):
        page.metrics.responded(status)
    found = page.values()
    names = [f'Requests{n}XX{{Level="Host"}}' for n in (2, 4, 5)]
    assert [found[name] for name in names] == [3, 2, 3]


def test_metrics_of_handlers_keep_kind_and_dimensions() -> None:
    page = Page()
    page.metrics.measured(
        [
            measured("HandlerTime", 2.5, ModelName="m", Level="Model"),
            measured("HandlerTime", 3.5, ModelName="m", Level="Model"),
            measured("Seen", 1, "counter", ModelName="m"),
            measured("Seen", 2, "counter", ModelName="m"),
            measured("Sizes", 0.3, "histogram", ModelName="m"),
        ]
    )
    found = page.values()
    assert found['HandlerTime{Level="Model",ModelName="m"}'] == 3.5
    assert found['Seen{ModelName="m"}'] == 3
    assert found['Sizes_bucket{ModelName="m",le="0.5"}'] == 1
    assert found["flambeau_handler_metrics_dropped_total"] == 0


@pytest.mark.parametrize(
    "bad",
    [
        measured("no name"),
        measured(""),
        measured("flambeau_requests"),
        measured("ts_inference_requests_total"),
        measured("Requests2XX"),
        measured("MemoryUsed"),
        measured("Fine", 1, "counter", ModelName="m"),
        measured("Fine", Other="m"),
        measured("Fine"),
        Measurement("Other", "gauge", "ms", 1.0, {"no label": "x"}),
        measured("Other", __name__="x"),
        measured("Other", ModelName="\ud800"),
        measured("Fine", ModelName="\ud800"),
        Measurement("Other", "gauge", "\ud800", 1.0, {}),
        measured("Other", 1, "histogram", le="5"),
        *(measured(f"Sizes{end}", le="5") for end in ("_bucket", "_count", "_sum")),
        measured("Times", 1, "histogram"),
    ],
)
def test_metrics_that_would_spoil_the_page_are_dropped(bad: Measurement) -> None:
    page = Page()
    page.metrics.measured(
        [
            measured("Fine", 1, ModelName="m"),
            measured("Sizes", 1, "histogram"),
            measured("Times_count"),
        ]
    )
    before = page.values()
    page.metrics.measured([bad])
    dropped = "flambeau_handler_metrics_dropped_total"
    assert page.values() == {**before, dropped: 1}


def test_names_and_series_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchserve_metrics, "MAX_HANDLER_METRICS", 3)
    monkeypatch.setattr(torchserve_metrics, "MAX_HANDLER_SERIES", 5)
    page = Page()
    page.metrics.measured([measured(f"Name{n}", 1, ModelName="m") for n in range(5)])
    page.metrics.measured([measured("Name0", 1, ModelName=f"m{n}") for n in range(5)])
    found = page.values()
    assert len([name for name in found if name.startswith("Name")]) == 5
    assert found["flambeau_handler_metrics_dropped_total"] == 2 + 3
    page.metrics.measured([measured("Name0", 8, ModelName="m")], dropped=7)
    assert page.values()["flambeau_handler_metrics_dropped_total"] == 2 + 3 + 7
    assert page.values()['Name0{ModelName="m"}'] == 8


def test_the_host_tells_its_memory_and_disk() -> None:
    found = Page(with_host=True).values()
    for name in ("MemoryUsed", "MemoryAvailable", "DiskUsage", "DiskAvailable"):
        assert found[f'{name}{{Level="Host"}}'] > 0
    for name in ("CPUUtilization", "MemoryUtilization", "DiskUtilization"):
        assert 0 <= found[f'{name}{{Level="Host"}}'] <= 100
    assert 'MemoryUsed{Level="Host"}' not in Page().values()


def test_gauges_of_several_processes_are_not_summed() -> None:
    pages = [Page(), Page()]
    for page, value in zip(pages, (2.0, 5.0), strict=True):
        page.metrics.queue_ms.value = value
        page.metrics.responded(200)
        page.metrics.measured([measured("PredictionTime", value, ModelName="m")])
    together = merged([decode_metrics(encode_metrics(page.registry)) for page in pages])
    found = {sample.name: sample.value for family in together for sample in family.samples}
    assert (found["QueueTime"], found["PredictionTime"]) == (5.0, 5.0)
    assert found["Requests2XX"] == 2
