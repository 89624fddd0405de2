"""Traces received by a collector, from a single-process server and from a split one."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import SHAPES
from tests.e2e.grpc_calls import linear_request
from tests.e2e.rest_calls import infer, linear_input, lookup_inputs
from tests.fixtures.otlp_collector import Collector, Span, running_collector
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

pytest.importorskip(
    "opentelemetry.proto",
    reason="the extra `tracing` is not installed: pip install 'flambeau[dev]'",
)
ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module", params=SHAPES)
def traced(
    request: pytest.FixtureRequest, store: Path, collector: Collector
) -> Iterator[ServerProcess]:
    running = SHAPES[request.param]
    settings: dict[str, Any] = {"trace_endpoint": collector.endpoint, "trace_ratio": 0.0}
    with running(store, models=["linear", "lookup"], access_log=True, **settings) as server:
        yield server


class Caller:
    """A client that traces."""

    def __init__(self, is_sampled: bool = True) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        flags = "01" if is_sampled else "00"
        self.headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{flags}"}

    def spans(self, collector: Collector, count: int) -> dict[str, Span]:
        """Returns the spans of its trace by name, once there are that many."""
        found = collector.wait_for(lambda spans: len(self._of(spans)) >= count)
        assert len(self._of(found)) == count
        return {span.name: span for span in self._of(found)}

    def _of(self, spans: list[Span]) -> list[Span]:
        return [span for span in spans if span.trace_id == self.trace_id]


def test_a_request_is_followed_to_the_backend(traced: ServerProcess, collector: Collector) -> None:
    caller = Caller()
    reply = infer(traced, "linear", linear_input(ROW), headers=caller.headers)
    assert reply.status == 200
    spans = caller.spans(collector, 4)
    edge = spans.pop("POST /v2/models/{model}/infer")
    queue, batch, backend = (spans[name] for name in ("queue", "batch", "backend"))
    assert edge.parent_id == caller.span_id
    assert (queue.parent_id, batch.parent_id) == (edge.span_id, queue.span_id)
    assert backend.parent_id == batch.span_id
    assert batch.links == ((edge.trace_id, edge.span_id),)
    assert queue.links == ((batch.trace_id, batch.span_id),)
    order = [edge.start_ns, queue.end_ns, backend.start_ns, backend.end_ns, edge.end_ns]
    assert order == sorted(order)
    assert edge.attributes["http.response.status_code"] == 200
    assert edge.attributes["flambeau.request.id"] == reply.headers["x-request-id"]
    assert (queue.attributes["flambeau.request.rows"], batch.attributes["flambeau.batch.rows"]) == (
        1, 1
    )  # fmt: skip
    for span in (edge, queue, batch, backend):
        assert span.attributes["flambeau.model.name"] == "linear"
        assert span.attributes["flambeau.model.version"] == "2"
        assert not span.is_error
    traced.wait_for_log(message="request", trace_id=caller.trace_id)


def test_grpc_brings_its_trace_too(traced: ServerProcess, collector: Collector) -> None:
    caller = Caller()
    with grpc.insecure_channel(traced.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        stub.ModelInfer(linear_request(ROW), metadata=tuple(caller.headers.items()), timeout=30)
    edge = caller.spans(collector, 4)["inference.GRPCInferenceService/ModelInfer"]
    assert edge.parent_id == caller.span_id
    assert edge.attributes["rpc.response.status_code"] == "OK"


def test_failures_are_told_with_their_trace(traced: ServerProcess, collector: Collector) -> None:
    refused, failed = Caller(), Caller()
    assert infer(traced, "nobody", linear_input(ROW), headers=refused.headers).status == 404
    assert infer(traced, "lookup", *lookup_inputs(99), headers=failed.headers).status >= 400
    edge = refused.spans(collector, 1)["POST /v2/models/{model}/infer"]
    assert (edge.attributes["error.type"], edge.is_error) == ("UnknownModelError", False)
    spans = failed.spans(collector, 4)
    assert spans["batch"].attributes["flambeau.batch.failed_requests"] == 1
    assert spans["backend"].is_error
    for caller in (refused, failed):
        traced.wait_for_log(message="request failed", trace_id=caller.trace_id)


def test_who_is_not_sampled_leaves_nothing_but_its_id(
    traced: ServerProcess, collector: Collector
) -> None:
    silent, loud = Caller(is_sampled=False), Caller()
    infer(traced, "linear", linear_input(ROW), headers=silent.headers)
    infer(traced, "linear", linear_input(ROW))
    infer(traced, "linear", linear_input(ROW), headers=loud.headers)
    loud.spans(collector, 4)
    assert silent.trace_id not in {span.trace_id for span in collector.spans()}
    traced.wait_for_log(message="request", trace_id=silent.trace_id)
    assert traced.metric("flambeau_spans_total", outcome="dropped") == 0
