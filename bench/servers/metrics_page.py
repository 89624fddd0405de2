"""Parses a server's `/metrics` page, and computes the difference between two of them.

Source: the Prometheus text format; a histogram is `NAME_bucket{le=...}`, `NAME_sum`, `NAME_count`.
"""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from bench.figures.verdicts import ratio

TIMEOUT_S = 10
LAG = "flambeau_event_loop_lag_seconds"
BATCH = "flambeau_batch_size"

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Samples by name and labels."""

    samples: Mapping[tuple[str, Labels], float]

    def since(self, earlier: "MetricsPage") -> "MetricsPage":
        """Returns the growth of each sample."""
        before = earlier.samples
        return MetricsPage({key: v - before.get(key, 0.0) for key, v in self.samples.items()})

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of all samples with this name and these labels."""
        wanted = frozenset(labels.items())
        return sum(v for (n, found), v in self.samples.items() if n == name and wanted <= found)

    def mean_batch_rows(self, model: str) -> float:
        """Returns the mean rows of a model's batches; NaN if none ran."""
        rows = self.total(f"{BATCH}_sum", model=model)
        return ratio(rows, self.total(f"{BATCH}_count", model=model))

    def mean(self, histogram: str) -> float:
        """Returns the mean of a histogram; NaN if it has no observations."""
        return ratio(self.total(f"{histogram}_sum"), self.total(f"{histogram}_count"))

    def lag_share_within(self, seconds: float) -> float:
        """Returns the share of event loop samples answered within so many seconds.

        Args:
            seconds: upper bound of one of the histogram's buckets.
        """
        within = self.total(f"{LAG}_bucket", le=str(seconds))
        return ratio(within, self.total(f"{LAG}_count"))


def read_metrics(address: str) -> MetricsPage:
    """Fetches the metrics of a server.

    Args:
        address: host:port of the metrics endpoint.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as page:
        return parse_metrics(page.read().decode())


def parse_metrics(text: str) -> MetricsPage:
    """Parses the text format."""
    return MetricsPage(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )
