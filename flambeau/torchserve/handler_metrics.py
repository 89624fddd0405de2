"""The metrics of a handler: `context.metrics`.

In: calls of the handler, as TorchServe's metrics have them. Out: measurements, which travel with
the answers of the batch to the server that exports them.
Source: the methods of `ts.metrics` of TorchServe 0.12, by their names and defaults.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from model_store.archives.handler_calls import Measurement

MAX_MEASUREMENTS = 1_000
"""Measurements of one batch; further ones are counted, not kept."""
MAX_CHARACTERS = 256
"""Characters of a name, a unit, or a value of a dimension."""
_COUNTER, _GAUGE = "counter", "gauge"


class HandlerMetric:
    """One metric, which may be updated by itself.

    Attributes:
        metric_name: its name.
        unit: its unit.
        dimension_names: names of its dimensions, in order.
    """

    def __init__(
        self, owner: "HandlerMetrics", name: str, unit: str, dimensions: Sequence[str], kind: str
    ) -> None:
        self._owner, self._kind = owner, kind
        self.metric_name, self.unit, self.dimension_names = name, unit, list(dimensions)

    def add_or_update(
        self, value: float, dimension_values: Sequence[str] = (), request_id: str = ""
    ) -> None:
        """Records a value.

        Raises:
            ValueError: a dimension has no value, or a counter's value is negative.
        """
        if len(dimension_values) != len(self.dimension_names):
            raise ValueError(
                f"the metric {self.metric_name} has the dimensions {self.dimension_names}; give a "
                f"value for each, and not {list(dimension_values)}"
            )
        if self._kind == _COUNTER and value < 0:
            raise ValueError(f"the counter {self.metric_name} cannot grow by {value}")
        named = zip(self.dimension_names, dimension_values, strict=True)
        self._owner.record(self.metric_name, self._kind, self.unit, value, dict(named))

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Any] = ()) -> None:
        """Records a value, with other dimensions than before."""
        self.dimension_names = [one.name for one in dimensions]
        self.add_or_update(value, [one.value for one in dimensions])


class HandlerMetrics:
    """The metrics of one handler.

    Args:
        model_name: value of the dimension `ModelName`.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.request_ids: Any = None
        self._metrics: dict[tuple[str, str], HandlerMetric] = {}
        self._measured: list[Measurement] = []
        self._dropped = 0

    def set_request_ids(self, request_ids: Any) -> None:
        """Takes the ids of a batch's requests."""
        self.request_ids = request_ids

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str = "",
        idx: int | None = None,
        dimensions: Sequence[Any] | None = None,
        metric_type: Any = _COUNTER,
    ) -> None:
        """Records a value of any kind."""
        named = {str(one.name): str(one.value) for one in dimensions or ()}
        level = {"ModelName": self.model_name, "Level": "Model"}
        self.record(name, _kind(metric_type), unit, value, level | named)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Any = None
    ) -> None:
        """Adds to a counter."""
        self.add_metric(name, value, "count", idx, dimensions, _COUNTER)

    def add_gauge(
        self, name: str, value: float, idx: int | None = None, dimensions: Any = None
    ) -> None:
        """Sets a gauge."""
        self.add_metric(name, value, "", idx, dimensions, _GAUGE)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Any = None,
        metric_type: Any = _GAUGE,
    ) -> None:
        """Records a duration in `ms` or `s`.

        Raises:
            ValueError: another unit.
        """
        self._check_unit(unit, ("ms", "s"))
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Any = None,
        metric_type: Any = _GAUGE,
    ) -> None:
        """Records a size in `MB`, `kB`, `GB` or `B`.

        Raises:
            ValueError: another unit.
        """
        self._check_unit(unit, ("MB", "kB", "GB", "B"))
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Any = None,
        metric_type: Any = _GAUGE,
    ) -> None:
        """Records a percentage."""
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: float, dimensions: Any = None) -> None:
        """Counts errors."""
        named = {str(one.name): str(one.value) for one in dimensions or ()}
        self.record(name, _COUNTER, "", value, {"Level": "Error"} | named)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: Any = _COUNTER,
    ) -> HandlerMetric:
        """Returns a new metric, in place of one of the same name and kind."""
        kind = _kind(metric_type)
        metric = HandlerMetric(self, metric_name, unit, dimension_names, kind)
        self._metrics[metric_name, kind] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: Any = _COUNTER) -> HandlerMetric:
        """Returns a metric of `add_metric_to_cache`, or of the server's `metrics_config`.

        Raises:
            KeyError: there is none.
        """
        found = self._metrics.get((metric_name, _kind(metric_type)))
        if found is None:
            raise KeyError(
                f"there is no metric '{metric_name}'; add it by add_metric_to_cache, or to "
                "model_metrics of the file that metrics_config names"
            )
        return found

    @property
    def cache(self) -> dict[Any, dict[str, HandlerMetric]]:
        """The metrics by kind, an enumeration of TorchServe's if its package is imported, and name.

        A copy: add metrics by `add_metric_to_cache`.
        """
        module = sys.modules.get("ts.metrics.metric_type_enum")
        kind_of = str if module is None else module.MetricTypes
        found: dict[Any, dict[str, HandlerMetric]] = {}
        for (name, kind), metric in self._metrics.items():
            found.setdefault(kind_of(kind), {})[name] = metric
        return found

    def record(
        self, name: str, kind: str, unit: str, value: float, dimensions: Mapping[str, Any]
    ) -> None:
        """Keeps a measurement until `take`.

        Raises:
            ValueError, TypeError: the value is no number.
        """
        if len(self._measured) >= MAX_MEASUREMENTS:
            self._dropped += 1
            return
        named = {_short(name): _short(value) for name, value in dimensions.items()}
        self._measured.append(Measurement(_short(name), kind, _short(unit), float(value), named))

    def take(self) -> tuple[list[Measurement], int]:
        """Returns the measurements since the last call, and how many came beyond the limit."""
        found = self._measured, self._dropped
        self._measured, self._dropped = [], 0
        return found

    def _check_unit(self, unit: str, known: Sequence[str]) -> None:
        if unit not in known:
            raise ValueError(f"the unit '{unit}' is not one of {', '.join(known)}")


class UnreadMetrics(HandlerMetrics):
    """Metrics that nobody reads: every name is known, and no value is kept."""

    def get_metric(self, metric_name: str, metric_type: Any = _COUNTER) -> HandlerMetric:
        """Returns a metric of this name."""
        found = self._metrics.get((metric_name, _kind(metric_type)))
        return found or UnreadMetric(self, metric_name, "", (), _kind(metric_type))

    def record(
        self, name: str, kind: str, unit: str, value: float, dimensions: Mapping[str, Any]
    ) -> None:
        """Does nothing."""


class UnreadMetric(HandlerMetric):
    """A metric whose dimensions are not known."""

    def add_or_update(
        self, value: float, dimension_values: Sequence[str] = (), request_id: str = ""
    ) -> None:
        """Does nothing."""


def _kind(metric_type: Any) -> str:
    """Returns the kind that an enumeration of TorchServe's, or its value, names."""
    kind = str(getattr(metric_type, "value", metric_type)).lower()
    return kind if kind in (_COUNTER, _GAUGE, "histogram") else _COUNTER


def _short(text: Any) -> str:
    return str(text)[:MAX_CHARACTERS]
