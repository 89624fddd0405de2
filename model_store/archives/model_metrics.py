"""The metrics that handlers find by `get_metric`: `metrics_config` of TorchServe. Pure.

In: the YAML file's bytes. Out: the metrics of its section `model_metrics`.
Source: `ts/configs/metrics.yaml` and `MetricsCacheYamlImpl` of TorchServe 0.12.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

from flambeau.protocol.strict import StrictModel
from model_store.errors import ServerPropertiesError
from model_store.yaml_text import YamlError, read_yaml

MAX_METRICS_BYTES = 2**18
"""Bytes of the file."""
MAX_MODEL_METRICS = 256
"""Metrics of handlers, as many as the page of metrics has."""
MAX_DIMENSIONS = 16
"""Dimensions of one metric."""
_MAX_CHARACTERS = 256
_SECTION = "model_metrics"

Kind = Literal["counter", "gauge", "histogram"]


class ModelMetric(StrictModel):
    """A metric of handlers."""

    name: str
    kind: Kind
    unit: str
    dimensions: tuple[str, ...]


DEFAULT_METRICS = tuple(
    ModelMetric(name=name, kind="gauge", unit="ms", dimensions=("ModelName", "Level"))
    for name in ("HandlerTime", "PredictionTime")
)
"""The metrics of TorchServe's own file."""


def parse_model_metrics(data: bytes, where: str) -> tuple[ModelMetric, ...]:
    """Reads a file of metrics.

    Args:
        data: the file's bytes.
        where: its name, for messages.

    Raises:
        ServerPropertiesError: it is no YAML, has another form, or exceeds a limit.
    """
    if len(data) > MAX_METRICS_BYTES:
        raise _faulty(where, f"it has over {MAX_METRICS_BYTES:,} bytes")
    try:
        document = read_yaml(data)
    except YamlError as error:
        raise _faulty(where, f"it is no YAML: {error}") from error
    section = document.get(_SECTION) if isinstance(document, Mapping) else None
    if not isinstance(section, Mapping):
        raise _faulty(where, f"it has no '{_SECTION}', a mapping of counter, gauge and histogram")
    found: list[ModelMetric] = []
    for kind, metrics in section.items():
        if kind not in get_args(Kind):
            raise _faulty(where, f"'{str(kind)[:100]}' is not counter, gauge or histogram")
        if not isinstance(metrics, Sequence) or isinstance(metrics, str):
            raise _faulty(where, f"'{kind}' of '{_SECTION}' is no list")
        if len(found) + len(metrics) > MAX_MODEL_METRICS:
            raise _faulty(where, f"it has over {MAX_MODEL_METRICS} metrics of handlers")
        found += [_metric(one, cast("Kind", kind), where) for one in metrics]
    return tuple(found)


def _metric(one: Any, kind: Kind, where: str) -> ModelMetric:
    fields = one if isinstance(one, Mapping) else {}
    name, unit = fields.get("name"), fields.get("unit")
    dimensions = fields.get("dimensions")
    dimensions = [] if dimensions is None else dimensions
    if (
        not isinstance(name, str)
        or not isinstance(unit, str)
        or not isinstance(dimensions, list)
        or not all(isinstance(one, str) for one in dimensions)
        or any(len(text) > _MAX_CHARACTERS for text in (name, unit, *dimensions))
    ):
        raise _faulty(
            where,
            f"a {kind} has no name, unit and list of dimensions, each of at most "
            f"{_MAX_CHARACTERS} characters",
        )
    if len(dimensions) > MAX_DIMENSIONS:
        raise _faulty(where, f"{name!r} has over {MAX_DIMENSIONS} dimensions")
    return ModelMetric(name=name, kind=kind, unit=unit, dimensions=tuple(dimensions))


def _faulty(where: str, why: str) -> ServerPropertiesError:
    return ServerPropertiesError(f"metrics_config is '{where}': {why}; correct it")
