"""Converts facts to OpenTelemetry spans, and sends them over OTLP (HTTP, protobuf).

Runs in the exporter's thread. A request's trace: the edge's span has the child `queue`; the `queue`
of a batch's first traced request has the child `batch`, and that has `backend`. `batch` links to
the edge's spans of all traced requests in it, and the `queue` of each of them links to `batch`.

Source: OpenTelemetry Protocol, OTLP/HTTP (https://opentelemetry.io/docs/specs/otlp/), and the
semantic conventions for HTTP and RPC servers (https://opentelemetry.io/docs/specs/semconv/); other
names begin with `flambeau.`. OpenTelemetry's SDK is not used: its encoder took 220 µs per traced
request, seven times the cost of the messages themselves (docs/adr/0025).
"""

import functools
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from services.tracing.context import SAMPLED, TraceContext
from services.tracing.tracer import BatchFacts, CollectorAwayError, EdgeFacts, Facts

TIMEOUT_S = 5.0
"""Timeout of a request to the collector."""
_TRY_AGAIN = (429, 502, 503, 504)
"""Statuses that the protocol defines as retryable."""
_REST_ROUTE = "/v2/models/{model}/infer"
_GRPC_METHOD = "inference.GRPCInferenceService/ModelInfer"
_SERVERS_FAULT = {
    "UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
}  # fmt: skip
"""gRPC codes that the conventions define as server errors."""
Attributes = dict[str, str | int]


class OtlpExporter:
    """Sends spans to a collector.

    Args:
        endpoint: full URL of the collector, such as `http://collector:4318/v1/traces`.
        service: service name, by the kind of this process.
        instance: unique name of this process.
        version: version of flambeau.
    """

    def __init__(self, endpoint: str, service: str, instance: str, version: str) -> None:
        self._endpoint = endpoint
        self._scope = InstrumentationScope(name="flambeau", version=version)
        self._resource = Resource(
            attributes=_pairs(
                {
                    "service.name": service,
                    "service.version": version,
                    "service.instance.id": instance,
                }
            )
        )

    def export(self, facts: Sequence[Facts]) -> int:
        """Sends facts as spans. Returns the number of spans.

        Raises:
            CollectorAwayError: the same facts may be sent again later.
            OSError: the collector refuses them.
        """
        spans = [span for fact in facts for span in self._spans(fact)]
        of_scope = ScopeSpans(scope=self._scope, spans=spans)
        of_process = ResourceSpans(resource=self._resource, scope_spans=[of_scope])
        body = ExportTraceServiceRequest(resource_spans=[of_process]).SerializeToString()
        headers = {"content-type": "application/x-protobuf"}
        request = urllib.request.Request(self._endpoint, body, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
                return len(spans)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _TRY_AGAIN:
                    raise CollectorAwayError(str(error)) from error
            raise
        except OSError as error:
            raise CollectorAwayError(str(error)) from error

    def _spans(self, facts: Facts) -> Iterator[Span]:
        if isinstance(facts, EdgeFacts):
            yield self._edge(facts)
        else:
            yield from self._batch(facts)

    def _edge(self, facts: EdgeFacts) -> Span:
        trace = facts.trace
        if facts.protocol == "rest":
            name = f"POST {_REST_ROUTE}"
            attributes: Attributes = {
                "http.request.method": "POST",
                "http.route": _REST_ROUTE,
                "http.response.status_code": int(facts.code),
            }
            is_ours = facts.code >= "500"
        else:
            name = _GRPC_METHOD
            attributes = {
                "rpc.system.name": "grpc",
                "rpc.method": _GRPC_METHOD,
                "rpc.response.status_code": facts.code,
            }
            is_ours = facts.code in _SERVERS_FAULT
        attributes |= {
            "flambeau.model.name": facts.model,
            "flambeau.model.version": facts.version,
            "flambeau.request.id": facts.request_id,
        }
        if facts.error:
            attributes["error.type"] = facts.error
        return _span(
            name,
            trace,
            trace.span_id,
            trace.parent_id,
            (trace.accepted_ns, facts.ended_ns),
            attributes,
            kind=Span.SPAN_KIND_SERVER,
            failed=is_ours,
        )

    def _batch(self, facts: BatchFacts) -> Iterator[Span]:
        """Yields the `queue` span of each request, then one `batch` and one `backend` span."""
        of_model: Attributes = {
            "flambeau.model.name": facts.lane.model,
            "flambeau.model.version": str(facts.lane.version),
        }
        if facts.lane.artifact:
            of_model["flambeau.artifact"] = facts.lane.artifact
        first = facts.requests[0][0]
        batch_id = secrets.token_bytes(8)
        to_batch = [Span.Link(trace_id=first.trace_id, span_id=batch_id)]
        queue_ids = [secrets.token_bytes(8) for _ in facts.requests]
        for (trace, rows), queue_id in zip(facts.requests, queue_ids, strict=True):
            times = min(trace.accepted_ns, facts.given_ns), facts.given_ns
            own = {**of_model, "flambeau.request.rows": rows}
            yield _span("queue", trace, queue_id, trace.span_id, times, own, to_batch)
        failed = facts.failed > 0
        sizes: Attributes = {
            "flambeau.batch.requests": facts.size,
            "flambeau.batch.rows": facts.rows,
            "flambeau.batch.padded_rows": facts.padded_rows,
            "flambeau.batch.failed_requests": facts.failed,
        }
        links = [Span.Link(trace_id=t.trace_id, span_id=t.span_id) for t, _ in facts.requests]
        times, said = (facts.given_ns, facts.ended_ns), of_model | sizes
        yield _span("batch", first, batch_id, queue_ids[0], times, said, links, failed=failed)
        times, backend_id = (facts.started_ns, facts.ended_ns), secrets.token_bytes(8)
        yield _span("backend", first, backend_id, batch_id, times, of_model, failed=failed)


def _span(
    name: str,
    trace: TraceContext,
    span_id: bytes,
    parent_id: bytes,
    times: tuple[int, int],
    attributes: Attributes,
    links: Sequence[Span.Link] = (),
    kind: "Span.SpanKind.ValueType" = Span.SPAN_KIND_INTERNAL,
    failed: bool = False,
) -> Span:
    return Span(
        trace_id=trace.trace_id,
        span_id=span_id,
        parent_span_id=parent_id,
        name=name,
        kind=kind,
        start_time_unix_nano=times[0],
        end_time_unix_nano=times[1],
        attributes=_pairs(attributes),
        links=links,
        status=Status(code=Status.STATUS_CODE_ERROR) if failed else None,
        flags=SAMPLED,
    )


def _pairs(attributes: Attributes) -> list[KeyValue]:
    return [_pair(key, value) for key, value in attributes.items()]


@functools.lru_cache(maxsize=1024)
def _pair(key: str, value: str | int) -> KeyValue:
    """Returns a cached pair, as most spans of a model are equal; messages copy it."""
    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    return KeyValue(key=key, value=AnyValue(int_value=value))
