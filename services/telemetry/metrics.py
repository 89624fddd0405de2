"""Every metric, in one file. Prometheus names: base units, `_total` for counters.

Labels stay few: model, version, protocol, code. Never a request id, never a name a caller made
up: a request for an unknown model counts under the model `unknown`.
"""

import contextlib
import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10
)  # fmt: skip
LOAD_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

UNKNOWN = "unknown"
"""Label value of requests that named no model or version we serve."""


class Metrics:
    """All metrics of one process, in a registry of its own."""

    def __init__(self, version: str) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        lane = ("model", "version")
        self.requests = Counter(
            "flambeau_requests",
            "Requests answered, by model, version, protocol and status code.",
            (*lane, "protocol", "code"),
            registry=registry,
        )
        self.refusals = Counter(
            "flambeau_refusals",
            "Requests refused before they ran, by the error that refused them.",
            ("reason",),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "flambeau_request_duration_seconds",
            "From the last byte of a request to the first of its reply.",
            (*lane, "protocol"),
            buckets=SECONDS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "flambeau_queue_duration_seconds",
            "From acceptance to the start of the batch.",
            lane,
            buckets=SECONDS,
            registry=registry,
        )
        self.execution_seconds = Histogram(
            "flambeau_execution_duration_seconds",
            "One run of the backend on one batch.",
            lane,
            buckets=SECONDS,
            registry=registry,
        )
        self.batch_rows = Histogram(
            "flambeau_batch_size",
            "Rows in one batch; the sum counts rows, the count counts batches.",
            lane,
            buckets=ROWS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "flambeau_in_flight_requests",
            "Accepted requests without a reply.",
            registry=registry,
        )
        self.queue_depth = Gauge(
            "flambeau_queue_depth", "Requests waiting for a batch.", lane, registry=registry
        )
        self.model_ready = Gauge(
            "flambeau_model_ready",
            "1 when the version is loaded and proven on this machine, else 0.",
            lane,
            registry=registry,
        )
        self.load_seconds = Histogram(
            "flambeau_model_load_duration_seconds",
            "From reading the manifest to ready: read, check, open, replay, warm up.",
            lane,
            buckets=LOAD_SECONDS,
            registry=registry,
        )
        Info("flambeau_build", "What runs.", registry=registry).info(
            {"version": version, "python": platform.python_version()}
        )

    def forget_lane(self, model: str, version: int) -> None:
        """Drops the gauges of a lane that is no longer served; counters stay."""
        for gauge in (self.queue_depth, self.model_ready):
            with contextlib.suppress(KeyError):  # never set for a version that did not load
                gauge.remove(model, str(version))
