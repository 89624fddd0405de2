"""What a server says of itself at `/metrics`, and what changed between two looks.

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
        """How much each sample grew."""
        before = earlier.samples
        return MetricsPage({key: v - before.get(key, 0.0) for key, v in self.samples.items()})

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that have these labels."""
        wanted = frozenset(labels.items())
        return sum(v for (n, found), v in self.samples.items() if n == name and wanted <= found)

    def mean_batch_rows(self, model: str) -> float:
        """Rows of a model's batches; NaN if none ran."""
        rows = self.total(f"{BATCH}_sum", model=model)
        return ratio(rows, self.total(f"{BATCH}_count", model=model))

    def lag_share_within(self, seconds: float) -> float:
        """The share of looks at the event loop that it answered within so many seconds.

        Args:
            seconds: an upper bound of one of the histogram's buckets.
        """
        within = self.total(f"{LAG}_bucket", le=str(seconds))
        return ratio(within, self.total(f"{LAG}_count"))


def read_metrics(address: str) -> MetricsPage:
    """Asks a server.

    Args:
        address: host:port of its metrics.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as page:
        return parse_metrics(page.read().decode())


def parse_metrics(text: str) -> MetricsPage:
    """Reads the text format."""
    return MetricsPage(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )
