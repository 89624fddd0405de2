"""The hot path's counters and histograms give the same output as the library's own."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from services.telemetry.loop_metrics import LoopCounter, LoopHistogram

BUCKETS = (0.001, 0.5, 1, 10)
values = st.lists(st.floats(0, 20) | st.sampled_from(BUCKETS), max_size=20)


def page(registry: CollectorRegistry) -> list[str]:
    """A scrape, without when each series began, which the library adds."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1e6)), max_size=20))
def test_a_counter_counts_as_the_library_s(amounts: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = LoopCounter("requests", "All.", ("model", "code"), registry=ours)
    reference = Counter("requests", "All.", ("model", "code"), registry=theirs)
    for model, amount in amounts:
        counter.labels(model, "200").inc(amount)
        reference.labels(model, "200").inc(amount)
    assert page(ours) == page(theirs)


@given(values, values)
def test_a_histogram_counts_as_the_library_s(first: list[float], second: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = LoopHistogram("wait_seconds", "How long.", ("model",), BUCKETS, registry=ours)
    reference = Histogram("wait_seconds", "How long.", ("model",), registry=theirs, buckets=BUCKETS)
    for model, observed in (("a", first), ("b", second)):
        histogram.labels(model)
        reference.labels(model)
        for value in observed:
            histogram.labels(model).observe(value)
            reference.labels(model).observe(value)
    assert page(ours) == page(theirs)


def test_a_counter_counts_by_one_unless_told() -> None:
    registry = CollectorRegistry()
    counter = LoopCounter("things", "All.", (), registry=registry)
    counter.labels().inc()
    counter.labels().inc(2.5)
    assert registry.get_sample_value("things_total") == 3.5


def test_one_set_of_labels_has_one_child() -> None:
    counter = LoopCounter("things", "All.", ("a", "b"), registry=CollectorRegistry())
    assert counter.labels("1", "2") is counter.labels("1", "2")
    assert counter.labels("1", "2") is not counter.labels("2", "1")


def openmetrics(registry: CollectorRegistry) -> str:
    page: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    return page.decode()


def test_the_newest_kept_trace_of_a_bucket_is_its_exemplar() -> None:
    registry = CollectorRegistry()
    histogram = LoopHistogram("seconds", "All.", (), BUCKETS, registry=registry)
    histogram.labels().observe(0.2)
    for trace_id in ("a" * 32, "b" * 32):
        histogram.labels().observe(0.3, trace_id)
    (with_one,) = [line for line in openmetrics(registry).splitlines() if "#" in line[1:]]
    assert with_one.startswith('seconds_bucket{le="0.5"} 3.0 # {trace_id="' + "b" * 32 + '"} 0.3 ')
    assert not [line for line in page(registry) if "trace_id" in line]  # the old format has none
