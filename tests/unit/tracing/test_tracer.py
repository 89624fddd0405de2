"""Sampling of requests for traces, and the export of their spans."""

import logging
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from services.errors import UnknownModelError
from services.gateway.request_accounting import RequestAccounting
from services.inference.config import InferenceConfig
from services.queueing.directory import Directory
from services.queueing.records import InferRequest, Lane
from services.queueing.redis_streams.wire import RequestRecord, decode_request, encode_request
from services.settings import ConfigError, checked
from services.telemetry.metrics import Metrics
from services.tracing import tracer as tracing
from services.tracing.context import TraceContext, TraceParent, read_traceparent
from services.tracing.setting import open_tracer
from services.tracing.tracer import EdgeFacts, Facts, Tracer
from tests.fixtures.inferences import open_inference
from tests.fixtures.queue_ends import reply_of

IDS = st.tuples(
    st.binary(min_size=16, max_size=16).filter(any),
    st.binary(min_size=8, max_size=8).filter(any),
)
SAMPLED = f"00-{'ab' * 16}-{'cd' * 8}-01"
LANE = Lane("digits", 3)


class Kept:
    """An exporter that records spans."""

    def __init__(self, failure: Exception | None) -> None:
        self.facts: list[Facts] = []
        self.came = threading.Event()
        self.failure = failure
        self.failed = threading.Semaphore(0)

    def export(self, facts: Sequence[Facts]) -> int:
        if self.failure is not None:
            self.failed.release()
            raise self.failure
        self.facts += facts
        self.came.set()
        return len(facts)


class Place:
    def __init__(self, ratio: float, failure: Exception | None = None) -> None:
        self.registry = CollectorRegistry()
        self.kept = Kept(failure)
        spans = Counter("flambeau_spans", "", ("outcome",), registry=self.registry)
        self.tracer = Tracer(ratio, self.kept, spans)

    def spans(self, outcome: str) -> float | None:
        return self.registry.get_sample_value("flambeau_spans_total", {"outcome": outcome})


def facts(number: int = 0) -> EdgeFacts:
    trace = TraceContext(bytes(16), bytes(8), b"", number)
    return EdgeFacts(trace, "rest", "digits", "3", "200", "", "id", number)


@given(IDS, st.integers(0, 255), st.sampled_from(["00", "01", "cc"]))
def test_a_header_is_read_as_it_was_written(
    ids: tuple[bytes, bytes], flags: int, version: str
) -> None:
    text = f"{version}-{ids[0].hex()}-{ids[1].hex()}-{flags:02x}"
    assert read_traceparent(text) == TraceParent(*ids, bool(flags & 1))
    later = read_traceparent(f"{text}-more")
    assert (later is None) is (version == "00")


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", f"ff{SAMPLED[2:]}", SAMPLED.upper(), SAMPLED[:-1], f"{SAMPLED}é",
     SAMPLED.replace("ab", "00"), SAMPLED.replace("cd", "00")],
)  # fmt: skip
def test_what_is_no_header_counts_as_none(text: str) -> None:
    assert read_traceparent(text) is None
    assert Place(0.0).tracer.begin(text) == (None, "")


def test_callers_decide_and_a_share_of_the_others_is_traced() -> None:
    never, always = Place(0.0).tracer, Place(1.0).tracer
    trace, trace_id = never.begin(SAMPLED)
    assert trace is not None
    assert (trace.trace_id.hex(), trace.parent_id.hex(), trace_id) == (
        "ab" * 16,
        "cd" * 8,
        "ab" * 16,
    )
    assert always.begin(SAMPLED[:-1] + "0") == (None, "ab" * 16)
    assert never.begin("") == (None, "")
    own, own_id = always.begin("")
    assert own is not None
    assert (own.parent_id, own_id) == (b"", own.trace_id.hex())
    half = Place(0.5).tracer
    assert 350 < sum(half.begin("")[0] is not None for _ in range(1000)) < 650


def test_what_is_kept_is_exported_and_the_rest_at_the_end() -> None:
    place = Place(1.0)
    with place.tracer.exporting():
        for number in range(tracing.AT_ONCE + 1):
            place.tracer.keep(facts(number))
    assert [fact.ended_ns for fact in place.kept.facts] == [*range(tracing.AT_ONCE + 1)]
    assert place.spans("exported") == tracing.AT_ONCE + 1


def test_exports_do_not_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "EXPORT_EVERY_S", 0.001)
    place = Place(1.0)
    with place.tracer.exporting():
        place.tracer.keep(facts())
        assert place.kept.came.wait(20)


def test_what_cannot_be_exported_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "MAX_KEPT", 2)
    place = Place(1.0, OSError("bad request"))
    for _ in range(3):
        place.tracer.keep(facts())
    assert place.spans("dropped") == 1
    with place.tracer.exporting():
        pass
    assert place.spans("dropped") == 3
    assert [record.message for record in caplog.records] == ["the collector rejects spans"]


def test_a_collector_that_is_away_gets_it_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "EXPORT_EVERY_S", 0.001)
    place = Place(1.0, tracing.CollectorAwayError("nobody there"))
    for number in range(tracing.AT_ONCE + 1):
        place.tracer.keep(facts(number))
    with place.tracer.exporting():
        for _ in range(3):
            assert place.kept.failed.acquire(timeout=20)
        assert [record.message for record in caplog.records] == ["the collector is unreachable"]
        place.kept.failure = None
    assert [fact.ended_ns for fact in place.kept.facts] == [*range(tracing.AT_ONCE + 1)]
    assert place.spans("dropped") == 0
    place.kept.failure = tracing.CollectorAwayError("again")
    place.tracer.keep(facts())
    with place.tracer.exporting():
        pass
    assert place.spans("dropped") == 1


def test_records_say_how_a_request_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place = Place(0.0)
    accounting = RequestAccounting(
        Metrics("test"), Directory(), access_log=True, tracer=place.tracer
    )
    good, bad, silent = (
        open_inference(accounting, "rest", "", "digits", "", header)
        for header in (SAMPLED, SAMPLED, "")
    )
    reply = reply_of({}, LANE)
    good.answered(reply)
    bad.fail(UnknownModelError("no such model"))
    silent.answered(reply)
    with place.tracer.exporting():
        pass
    told = [(fact.version, fact.code, fact.error) for fact in place.kept.facts
            if isinstance(fact, EdgeFacts)]  # fmt: skip
    assert told == [("3", "200", ""), ("", "404", "UnknownModelError")]
    logged = [getattr(record, "trace_id", None) for record in caplog.records]
    assert logged == ["ab" * 16, "ab" * 16, None]


def test_a_trace_crosses_the_queue_and_an_older_gateway_sends_none() -> None:
    trace = TraceContext(b"t" * 16, b"s" * 8, b"p" * 8, 123)
    x = np.ones((1, 2), np.float32)
    request = InferRequest(
        request_id="id", lane=LANE, inputs={"x": x}, rows=1, deadline=9.0, trace=trace
    )
    data = encode_request(request)
    found = decode_request(data, LANE, 9.0, alone=False)
    assert isinstance(found, InferRequest)
    assert found.trace == trace
    fields = msgspec.msgpack.decode(data)
    older = msgspec.msgpack.encode(fields[: RequestRecord.__struct_fields__.index("trace")])
    found = decode_request(older, LANE, 9.0, alone=False)
    assert isinstance(found, InferRequest)
    assert found.trace is None


def test_nothing_is_traced_unless_an_endpoint_is_set() -> None:
    found = checked(InferenceConfig, {"queue": "redis://here"})
    assert open_tracer(found, "test", Metrics("test")) is None
    with pytest.raises(ConfigError, match="'trace_endpoint' is 'collector:4318'"):
        checked(InferenceConfig, {"queue": "redis://here", "trace_endpoint": "collector:4318"})
