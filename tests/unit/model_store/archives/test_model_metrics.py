"""TorchServe's file of metrics."""

from pathlib import Path

import pytest

from model_store.archives.model_metrics import (
    DEFAULT_METRICS,
    MAX_DIMENSIONS,
    MAX_METRICS_BYTES,
    MAX_MODEL_METRICS,
    ModelMetric,
    parse_model_metrics,
)
from model_store.errors import ServerPropertiesError


def test_the_metrics_of_handlers_are_read() -> None:
    text = b"""
dimensions: [&model ModelName]
ts_metrics:
  counter: [{name: Requests2XX, unit: Count, dimensions: [Level]}]
model_metrics:
  counter:
    - name: RequestBatchCount
      unit: count
      dimensions: [*model]
  histogram: [{name: t, unit: ms, dimensions: []}]
"""
    assert parse_model_metrics(text, "metrics.yaml") == (
        ModelMetric(
            name="RequestBatchCount", kind="counter", unit="count", dimensions=("ModelName",)
        ),
        ModelMetric(name="t", kind="histogram", unit="ms", dimensions=()),
    )


def test_the_default_is_torchserves_file() -> None:
    ts = pytest.importorskip("ts")
    data = (Path(ts.__file__).parent / "configs" / "metrics.yaml").read_bytes()
    assert parse_model_metrics(data, "metrics.yaml") == DEFAULT_METRICS


def _metrics(count: int, dimensions: int = 0) -> bytes:
    one = f"{{name: a, unit: b, dimensions: {['d'] * dimensions}}}"
    return f"model_metrics: {{gauge: [{', '.join([one] * count)}]}}".encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[", "it is no YAML"),
        (b"a: 1", "it has no 'model_metrics'"),
        (b"model_metrics: {timer: []}", "'timer' is not counter"),
        (b"model_metrics: {gauge: x}", "'gauge' of 'model_metrics' is no list"),
        (b"model_metrics: {gauge: [x]}", "a gauge has no name, unit and list"),
        (b"model_metrics: {gauge: [{name: a, unit: b, dimensions: [1]}]}", "a gauge has no name"),
        (b"#" * (MAX_METRICS_BYTES + 1), "it has over 262,144 bytes"),
        (_metrics(MAX_MODEL_METRICS + 1), "it has over 256 metrics"),
        (_metrics(1, MAX_DIMENSIONS + 1), "'a' has over 16 dimensions"),
    ],
)
def test_a_file_of_another_form_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ServerPropertiesError, match=r"metrics_config is 'm.yaml': ") as raised:
        parse_model_metrics(data, "m.yaml")
    assert reason in str(raised.value)


def test_a_file_at_its_limits_is_read() -> None:
    assert len(parse_model_metrics(_metrics(MAX_MODEL_METRICS), "m")) == MAX_MODEL_METRICS
    (one,) = parse_model_metrics(_metrics(1, MAX_DIMENSIONS), "m")
    assert len(one.dimensions) == MAX_DIMENSIONS
