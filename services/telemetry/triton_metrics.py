"""The metrics of models under Triton's names, for dashboards that exist; off by default.

In: the figures of this process's versions. Out: families for `prometheus_client`, as of each
scrape. Source: Triton, "Metrics": times are microseconds, and names have no `_total`; so these
families have no type, since Prometheus' counters need that ending.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from services.telemetry.model_figures import (
    BACKEND,
    CANCELLED,
    INFER_S,
    INPUT_S,
    OTHER,
    OUTPUT_S,
    REJECTED,
    ModelFigures,
    VersionFigures,
)

_REASONS = (REJECTED, CANCELLED, BACKEND, OTHER)
_MICROSECONDS = 1e6
_SERIES: dict[str, tuple[str, Callable[[VersionFigures], float]]] = {
    "nv_inference_request_success": (
        "Number of successful inference requests, all batch sizes",
        lambda figures: figures.answered,
    ),
    "nv_inference_count": (
        "Number of inferences performed: rows of all runs",
        lambda figures: figures.rows,
    ),
    "nv_inference_exec_count": (
        "Number of model executions performed",
        lambda figures: figures.runs,
    ),
    "nv_inference_request_duration_us": (
        "Cumulative inference request duration in microseconds",
        lambda figures: figures.answered_s * _MICROSECONDS,
    ),
    "nv_inference_queue_duration_us": (
        "Cumulative inference queuing duration in microseconds",
        lambda figures: figures.queued_s * _MICROSECONDS,
    ),
    "nv_inference_compute_input_duration_us": (
        "Cumulative compute input duration in microseconds",
        lambda figures: figures.of_requests_s(INPUT_S) * _MICROSECONDS,
    ),
    "nv_inference_compute_infer_duration_us": (
        "Cumulative compute inference duration in microseconds",
        lambda figures: figures.of_requests_s(INFER_S) * _MICROSECONDS,
    ),
    "nv_inference_compute_output_duration_us": (
        "Cumulative inference compute output duration in microseconds",
        lambda figures: figures.of_requests_s(OUTPUT_S) * _MICROSECONDS,
    ),
}


class TritonMetrics(Collector):
    """The families of one process.

    Args:
        figures: of its versions.
        waiting: gauge of the requests that wait, by model and version.
        registry: registry of the process.
    """

    def __init__(self, figures: ModelFigures, waiting: Gauge, registry: CollectorRegistry) -> None:
        self._figures, self._waiting = figures, waiting
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yields the current families; called by a scrape."""
        versions = list(self._figures.all())
        for name, (documentation, value_of) in _SERIES.items():
            family = Metric(name, documentation, "unknown")
            for figures in versions:
                family.add_sample(name, _labels(figures), value_of(figures))
            yield family
        yield _failures(versions)
        name = "nv_inference_pending_request_count"
        pending = Metric(name, "Number of requests that wait for a batch", "gauge")
        for found in self._waiting.collect():
            for sample in found.samples:
                pending.add_sample(name, dict(sample.labels), sample.value)
        yield pending


def _failures(versions: Iterable[VersionFigures]) -> Metric:
    name = "nv_inference_request_failure"
    family = Metric(name, "Number of failed inference requests, all batch sizes", "unknown")
    for figures in versions:
        for reason in _REASONS:
            count, _ = figures.failed.get(reason, (0, 0))
            family.add_sample(name, {**_labels(figures), "reason": reason}, count)
    return family


def _labels(figures: VersionFigures) -> dict[str, str]:
    return {"model": figures.model, "version": figures.version}
