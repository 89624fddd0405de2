"""What handlers find as in TorchServe: configured metrics, logs, the context's own attributes."""

import importlib.metadata
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model_store.archives.model_metrics import ModelMetric
from model_store.archives.requirements import IMPORTED, unused_packages
from services.inference.loading.loader import LoadError
from tests.fixtures.served_archives import ServedArchive, request_of, write_packages

Serve = Callable[..., ServedArchive]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    opened: list[ServedArchive] = []

    def start(source: str, **how: Any) -> ServedArchive:
        opened.append(ServedArchive(tmp_path, source, **how))
        return opened[-1]

    yield start
    for one in opened:
        one.backend.close()


def test_a_handler_finds_the_metrics_of_the_configuration(serve: Serve) -> None:
    pytest.importorskip("ts")
    served = serve(
        """
        from ts.metrics.metric_type_enum import MetricTypes

        class Counting:
            def initialize(self, context):
                metrics = context.metrics
                self.batches = metrics.get_metric("RequestBatchCount", MetricTypes.COUNTER)
                assert metrics.cache[MetricTypes.COUNTER]["RequestBatchCount"] is self.batches

            def handle(self, data, context):
                self.batches.add_or_update(len(data), [context.model_name])
                return ["" for _ in data]
    """,
        metrics=(
            ModelMetric(
                name="RequestBatchCount", kind="counter", unit="count", dimensions=("ModelName",)
            ),
        ),
    )
    (answer,) = served.ask(request_of())
    found = {one.name: (one.kind, one.value, one.dimensions) for one in answer.measurements}
    assert found["RequestBatchCount"] == ("counter", 1.0, {"ModelName": "m"})


def test_the_default_metrics_are_there_and_others_are_not(serve: Serve) -> None:
    source = """
        def handle(data, context):
            if data is None:
                context.metrics.get_metric("HandlerTime", "gauge")
                context.metrics.get_metric("Other", "gauge")
    """
    with pytest.raises(LoadError, match=r"'Other'; add it by .* model_metrics of the file"):
        serve(source)


def test_handlers_may_ask_for_the_class_of_the_context(serve: Serve) -> None:
    pytest.importorskip("ts")
    served = serve("""
        from ts.context import Context

        def handle(data, context):
            found = [isinstance(context, Context), context._system_properties["batch_size"]]
            return [found + [len(context._request_processor)] for _ in data or ()]
    """)
    (answer,) = served.ask(request_of())
    assert json.loads(bytes(answer.body)) == [True, 8, 1]


def test_logs_of_handlers_name_the_model_and_failures_the_requests(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    served = serve("""
        import logging

        logger = logging.getLogger(__name__)

        def handle(data, context):
            logger.debug("too much")
            if data is None:
                logger.info("is initialized")
                return
            raise RuntimeError("boom")
    """)
    served.ask(request_of(id="first"), request_of(id="second"))
    served.backend.close()
    lines = capfd.readouterr().err.splitlines()
    assert "m INFO handler: is initialized" in lines
    assert not any("too much" in line for line in lines)
    failed = [line for line in lines if "failed" in line]
    assert failed == [
        "m WARNING flambeau.python_model.ArchivedModel: the handler of m failed for first, second"
    ]


def test_requirements_that_the_worker_has_in_another_version_are_named(
    tmp_path: Path, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    present = importlib.metadata.version("pydantic")
    write_packages(tmp_path, ["pydantic==1.10.2", "PyYAML==1.0", "colour==3.0"])
    found = unused_packages(tmp_path)
    assert [note.split()[3] for note in found] == ["pydantic", "pyyaml"]
    assert "and not 1.10.2 of the archive's requirements" in found[0]
    served = serve("def handle(data, context): pass", packages=["pydantic==1.10.2"])
    served.backend.close()
    assert f"m: the handler gets pydantic {present}" in capfd.readouterr().err


def test_the_packages_that_a_worker_has_imported_are_known(serve: Serve) -> None:
    served = serve("""
        import importlib.metadata
        import sys

        FOUND = {one.partition(".")[0] for one in sys.modules}

        def handle(data, context):
            named = importlib.metadata.packages_distributions()
            found = sorted({name for one in FOUND for name in named.get(one, ())})
            return [found for _ in data or ()]
    """)
    (answer,) = served.ask(request_of())
    found = {name.lower().replace("_", "-") for name in json.loads(bytes(answer.body))}
    assert found - {"flambeau", "setuptools"} <= IMPORTED
