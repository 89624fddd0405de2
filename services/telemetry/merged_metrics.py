"""One scrape of several processes: their metrics, summed.

In: the families of each process, as bytes. Out: families for `prometheus_client`.

Rules:
- counters, histograms and gauges are summed: each counts what happened in its process;
- what describes all processes alike is not: an information keeps its 1, the earliest start and the
  nearest expiry count, the largest gauge of a host or a handler does, and a gauge that one process
  does not know (NaN) is that of the others;
- counters of a process that has ended stay, as of the last scrape: a sum that fell would look like
  a restart of all.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import Exemplar
from prometheus_client.registry import Collector

_SMALLEST = (
    "process_start_time_seconds",
    "flambeau_tls_certificate_not_after_timestamp_seconds",
)
_LARGEST = ("python_info", "flambeau_access_source_stale")
_SUMMED = ("flambeau_", "process_", "nv_")
"""Beginnings of names of gauges that are summed; others are those of `torchserve_metrics.py`."""
_LASTING_TYPES = ("counter", "histogram", "unknown")
"""Counters of Triton's names have no type (`triton_metrics.py`)."""

Labels = tuple[tuple[str, str], ...]


class MetricSample(msgspec.Struct, array_like=True, gc=False):
    """One sample of a family."""

    name: str
    labels: Labels
    value: float
    exemplar: tuple[dict[str, str], float, float | None] | None = None


class MetricFamily(msgspec.Struct, array_like=True):
    """One family of a process."""

    name: str
    documentation: str
    type: str
    samples: list[MetricSample]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[MetricFamily]).decode


def encode_metrics(registry: CollectorRegistry) -> bytes:
    """Returns the current families of a process."""
    return _encode([_family(found) for found in registry.collect()])


def decode_metrics(data: bytes) -> list[MetricFamily]:
    """Returns the families that another process has encoded."""
    return _decode(data)


def lasting(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """Returns the families whose sums stay when their process has ended."""
    return [family for family in families if family.type in _LASTING_TYPES]


def merged(processes: Sequence[Sequence[MetricFamily]]) -> list[MetricFamily]:
    """Returns the families of all processes together, in the order of the first."""
    by_name: dict[str, list[MetricFamily]] = {}
    for families in processes:
        for family in families:
            by_name.setdefault(family.name, []).append(family)
    return [_together(families) for families in by_name.values()]


class MergedCollector(Collector):
    """Families for a registry: in each process its own, here all of them.

    Args:
        families: returns them; called in the thread of a scrape.
    """

    def __init__(self, families: Callable[[], Iterable[MetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Yields the families."""
        for family in self._families():
            metric = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                exemplar = Exemplar(*sample.exemplar) if sample.exemplar else None
                metric.add_sample(sample.name, dict(sample.labels), sample.value, exemplar=exemplar)
            yield metric


def _family(metric: Metric) -> MetricFamily:
    samples = []
    for found in metric.samples:
        exemplar = found.exemplar
        samples.append(
            MetricSample(
                found.name,
                tuple(found.labels.items()),
                found.value,
                (dict(exemplar.labels), exemplar.value, _seconds(exemplar.timestamp))
                if exemplar
                else None,
            )
        )
    return MetricFamily(metric.name, metric.documentation, metric.type, samples)


def _seconds(timestamp: object) -> float | None:
    return None if timestamp is None else float(str(timestamp))


def _together(families: Sequence[MetricFamily]) -> MetricFamily:
    first = families[0]
    found: dict[tuple[str, Labels], MetricSample] = {}
    for family in families:
        for sample in family.samples:
            known = found.get((sample.name, sample.labels))
            if known is None:
                found[sample.name, sample.labels] = msgspec.structs.replace(sample)
                continue
            known.value = _value(first, known.value, sample.value)
            if sample.exemplar and (
                not known.exemplar or (sample.exemplar[2] or 0) > (known.exemplar[2] or 0)
            ):
                known.exemplar = sample.exemplar
    return MetricFamily(first.name, first.documentation, first.type, list(found.values()))


def _value(family: MetricFamily, one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return other if math.isnan(one) else one
    if family.name in _SMALLEST:
        return min(one, other)
    if family.type == "info" or family.name in _LARGEST:
        return max(one, other)
    if family.type == "gauge" and not family.name.startswith(_SUMMED):
        return max(one, other)
    return one + other
