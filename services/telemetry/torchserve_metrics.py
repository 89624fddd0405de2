"""Metrics under TorchServe's names, on servers with its door, for dashboards that exist.

In: outcomes of the door's requests, and what handlers measured; on the event loop. Out: families
for `prometheus_client`, as of each scrape.
Source: `ts/configs/metrics.yaml` and docs/metrics_api.md of TorchServe 0.12. Its counters do not
end in `_total`; as Prometheus' counters need that ending, such families have no type here.

Rules: a metric of a handler keeps the kind and the dimensions of its first value; one whose name is
invalid or another's, one with text that UTF-8 does not have, and those beyond the limits, are
dropped and counted.
"""

import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.registry import Collector

from services.telemetry.loop_metrics import CounterChild, LoopCounter, LoopGauge, LoopHistogram

MAX_HANDLER_METRICS = 256
"""Names of the metrics of all handlers."""
MAX_HANDLER_SERIES = 4096
"""Sets of values of their dimensions."""
DEFAULT = "default"
"""The value of `model_version` where a request names none."""
VALUES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bounds of the buckets of TorchServe's histograms."""

_NAME = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile("(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OURS = re.compile("(flambeau|process|python|nv|ts)_")
_VERSION = ("model_name", "model_version", "hostname")
_LEVEL = ("Level", "Hostname")
_STATUSES = ("Requests2XX", "Requests4XX", "Requests5XX")
_LAST = {
    "QueueTime": "Time of the newest answered request in the queue, in milliseconds.",
    "WorkerThreadTime": "Time of the newest batch beside its handler's, in milliseconds.",
}
_OF_HOST = {
    "CPUUtilization": "CPU of the host in use since the scrape before, in percent.",
    "MemoryUsed": "Memory of the host in use, in megabytes.",
    "MemoryAvailable": "Memory of the host that is available, in megabytes.",
    "MemoryUtilization": "Memory of the host in use, in percent.",
    "DiskUsage": "Disk of / in use, in gigabytes.",
    "DiskAvailable": "Disk of / that is free, in gigabytes.",
    "DiskUtilization": "Disk of / in use, in percent.",
}
_TAKEN = frozenset((*_STATUSES, *_LAST, *_OF_HOST))
_OF_HISTOGRAM = "", "_bucket", "_count", "_sum"
"""Endings of the names that a histogram has on the page."""


class LoopUntyped(LoopCounter):
    """A counter family whose name does not end in `_total`."""

    family_type = UnknownMetricFamily  # type: ignore[assignment]


class Measured(Protocol):
    """A value that a handler measured."""

    @property
    def name(self) -> str:
        """Name of the metric."""

    @property
    def kind(self) -> str:
        """`counter`, `gauge` or `histogram`."""

    @property
    def unit(self) -> str:
        """Its unit; may be empty."""

    @property
    def value(self) -> float:
        """The value."""

    @property
    def dimensions(self) -> Mapping[str, str]:
        """Values of its dimensions, by name."""


class RequestSeries:
    """The counters of the requests for one version, as callers name it.

    Attributes:
        requests: requests that were accepted.
        latency_us: durations of those that were answered.
        queue_us: their times in the queue.
    """

    __slots__ = ("latency_us", "queue_us", "requests")

    def __init__(
        self, requests: CounterChild, latency_us: CounterChild, queue_us: CounterChild
    ) -> None:
        self.requests, self.latency_us, self.queue_us = requests, latency_us, queue_us


class TorchServeMetrics:
    """The families of one process.

    Args:
        registry: registry of the process.
        with_host: True for those of the host, too.

    Attributes:
        queue_ms: has the newest time of a request in the queue as its `value`.
        thread_ms: has the newest time of a batch beside its handler's.
    """

    def __init__(self, registry: CollectorRegistry, *, with_host: bool = True) -> None:
        self._registry = registry
        self._host = host = socket.gethostname()
        self._requests = LoopCounter(
            "ts_inference_requests", "Requests of inference.", _VERSION, registry
        )
        self._latency_us = LoopUntyped(
            "ts_inference_latency_microseconds",
            "Sum of the durations of answered requests.",
            _VERSION,
            registry,
        )
        self._queue_us = LoopUntyped(
            "ts_queue_latency_microseconds",
            "Sum of the times of answered requests in the queue.",
            _VERSION,
            registry,
        )
        self._statuses = [
            LoopUntyped(name, f"Responses with a status of {name[-3]}xx.", _LEVEL, registry).labels(
                "Host", host
            )
            for name in _STATUSES
        ]
        self.queue_ms, self.thread_ms = (
            LoopGauge(name, told, _LEVEL, registry).labels("Host", host)
            for name, told in _LAST.items()
        )
        if with_host:
            registry.register(_HostGauges(host))
        self._dropped = LoopCounter(
            "flambeau_handler_metrics_dropped",
            "Values of handlers' own metrics that were dropped: their names or texts are invalid, "
            "their names taken, their kind or dimensions changed, or there are too many.",
            (),
            registry,
        ).labels()
        self._handlers: dict[str, _HandlerMetric] = {}
        self._taken = set(_TAKEN)
        """Names on the page that no further metric of a handler may have."""
        self._series = 0

    def of(self, model: str, version: str) -> RequestSeries:
        """Returns the counters of the requests for a registered version; cache them.

        Args:
            model: its name.
            version: as the request names it; empty for the default one.
        """
        labels = model, version or DEFAULT, self._host
        families = self._requests, self._latency_us, self._queue_us
        return RequestSeries(*(family.labels(*labels) for family in families))

    def responded(self, status: int) -> None:
        """Counts a response over HTTP."""
        if 200 <= status < 300:
            self._statuses[0].value += 1
        elif 400 <= status < 600:
            self._statuses[1 if status < 500 else 2].value += 1

    def measured(self, values: Iterable[Measured], dropped: int = 0) -> None:
        """Takes what a handler measured for a batch.

        Args:
            values: the values.
            dropped: number of further ones, which its process dropped.
        """
        self._dropped.value += dropped
        for one in values:
            if not self._take(one):
                self._dropped.value += 1

    def _take(self, one: Measured) -> bool:
        """Takes a value; returns False if it is dropped."""
        metric = self._handlers.get(one.name)
        if metric is None:
            endings = _OF_HISTOGRAM if _is_histogram(one) else ("",)
            names = {one.name + ending for ending in endings}
            is_taken = _OURS.match(one.name) or not self._taken.isdisjoint(names)
            if not _is_valid(one) or is_taken or len(self._handlers) >= MAX_HANDLER_METRICS:
                return False
            metric = self._handlers[one.name] = _HandlerMetric(one, self._host, self._registry)
            self._taken |= names
        if metric.kind != one.kind or metric.names != one.dimensions.keys():
            return False
        if not metric.knows(one):
            if self._series >= MAX_HANDLER_SERIES or not _is_text(one):
                return False
            self._series += 1
        metric.take(one)
        return True


def _is_histogram(one: Measured) -> bool:
    return one.kind == "histogram"


def _is_valid(one: Measured) -> bool:
    """True if the page can have a metric of this name with these dimensions."""
    if _is_histogram(one) and "le" in one.dimensions:  # the bound of a bucket
        return False
    names = _NAME.fullmatch(one.name) and all(map(_LABEL.fullmatch, one.dimensions))
    return bool(names) and _is_text(one)


def _is_text(one: Measured) -> bool:
    """True if its unit and the values of its dimensions have no lone surrogates."""
    try:
        "".join((one.unit, *one.dimensions.values())).encode()
    except UnicodeEncodeError:
        return False
    return True


class _HandlerMetric:
    """A metric of handlers, of the kind and with the dimensions of its first value."""

    def __init__(self, first: Measured, host: str, registry: CollectorRegistry) -> None:
        self.kind, self.names = first.kind, dict.fromkeys(first.dimensions).keys()
        told = f"A {first.kind} of a handler" + (f", in {first.unit}." if first.unit else ".")
        host_label = {} if "Hostname" in first.dimensions else {"Hostname": host}
        self._host = tuple(host_label.values())
        about = first.name, told, (*first.dimensions, *host_label)
        self._family: LoopCounter | LoopHistogram
        if first.kind == "histogram":
            self._family = LoopHistogram(*about, VALUES, registry)
        else:
            kind = LoopGauge if first.kind == "gauge" else LoopUntyped
            self._family = kind(*about, registry)
        self._known: set[tuple[str, ...]] = set()

    def knows(self, one: Measured) -> bool:
        """True if a value with these dimensions came before."""
        return self._values(one) in self._known

    def take(self, one: Measured) -> None:
        """Takes a value."""
        values = self._values(one)
        self._known.add(values)
        if isinstance(self._family, LoopHistogram):
            self._family.labels(*values, *self._host).observe(one.value)
        elif self.kind == "gauge":
            self._family.labels(*values, *self._host).value = one.value
        else:
            self._family.labels(*values, *self._host).value += one.value

    def _values(self, one: Measured) -> tuple[str, ...]:
        return tuple([one.dimensions[name] for name in self.names])


class _HostGauges(Collector):
    """The gauges of the host, as of each scrape."""

    def __init__(self, host: str) -> None:
        self._labels = "Host", host
        self._before = _cpu_times()

    def collect(self) -> Iterator[Metric]:
        """Yields the families; nothing where the host does not tell."""
        try:
            found = {**self._cpu(), **_memory(), **_disk()}
        except (OSError, ValueError, LookupError):
            return
        for name, told in _OF_HOST.items():
            family = GaugeMetricFamily(name, told, labels=_LEVEL)
            family.add_metric(self._labels, found[name])
            yield family

    def _cpu(self) -> dict[str, float]:
        before, self._before = self._before, _cpu_times()
        busy, total = (now - one for now, one in zip(self._before, before, strict=True))
        return {"CPUUtilization": round(100 * busy / total, 1) if total > 0 else 0.0}


def _cpu_times() -> tuple[float, float]:
    """Returns the ticks in which the host's CPUs were busy, and all; proc(5)."""
    words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    ticks = [int(word) for word in words]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def _memory() -> dict[str, float]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    total, available = kilobytes["MemTotal"], kilobytes["MemAvailable"]
    return {
        "MemoryUsed": (total - available) / 1024,
        "MemoryAvailable": available / 1024,
        "MemoryUtilization": round(100 * (total - available) / total, 1),
    }


def _disk() -> dict[str, float]:
    usage = shutil.disk_usage(os.sep)
    return {
        "DiskUsage": usage.used / 2**30,
        "DiskAvailable": usage.free / 2**30,
        "DiskUtilization": round(100 * usage.used / (usage.used + usage.free), 1),
    }
