"""Dashboards on a real Prometheus that scrapes a gateway, a worker and a trainer under load."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flambeau.monitoring.dashboards import DASHBOARDS, GPU, MODEL_DETAIL, OVERVIEW, QUEUE
from flambeau.monitoring.metric_reference import Metric, all_metrics
from flambeau.monitoring.panels import Dashboard
from tests.dashboards.answers import ask, without_data
from tests.dashboards.fleet import ROW, RULES, Fleet, load, running_fleet
from tests.e2e.rest_calls import infer, linear_input
from tests.fixtures.onnx_models import linear, publish, slow_lookup
from tests.fixtures.prometheus_process import (
    PrometheusProcess,
    program,
    run_tool,
    running_prometheus,
)
from tests.fixtures.servers import running_server

SHOWN_S, WINDOW_S = 5.0, 3.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    program("prometheus")
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def test_every_panel_has_data(fleet: Fleet) -> None:
    with load(fleet.server):
        for traffic in (
            f"sum(rate(flambeau_requests_total[{WINDOW_S:g}s]))",
            f'sum(rate(flambeau_requests_total{{model="lookup"}}[{WINDOW_S:g}s]))',
            f"sum(rate(flambeau_finished_jobs_total[{WINDOW_S:g}s]))",
            f"min(count_over_time(up[{SHOWN_S:g}s]))",
            "min(model:flambeau_requests_slow:ratio_rate1h) + 1",
        ):
            fleet.prometheus.wait_for(traffic, lambda found: found > 0)
        fleet.prometheus.wait_until(
            lambda: [panels_without_data(fleet)],
            lambda found: not any(found[0].values()),
            "the panels without data",
        )


def panels_without_data(fleet: Fleet) -> dict[str, list[str]]:
    """Returns the queries without data by dashboard; a machine that stalls misses scrapes."""
    return {
        dashboard.uid: without_data(ask(fleet.prometheus, dashboard, SHOWN_S, WINDOW_S))
        for dashboard in DASHBOARDS
        if dashboard is not GPU
    }


def test_panels_without_data_of_a_server_in_one_process_say_why(tmp_path: Path) -> None:
    """It has no Redis: every other panel has data, and the Redis panels show a text instead."""
    program("prometheus")
    store = tmp_path / "store"
    publish(str(store), "linear", linear(1.0, layers=4))
    publish(str(store), "linear", linear(2.0))
    publish(str(store), "lookup", slow_lookup())
    dashboards = (OVERVIEW, MODEL_DETAIL, QUEUE)
    with (
        running_server(store, newest_versions=2) as server,
        running_prometheus(
            tmp_path / "prometheus", {"flambeau": f"127.0.0.1:{server.metrics_port}"}, RULES
        ) as prometheus,
        load(server),
    ):
        for traffic in (
            f'sum(rate(flambeau_requests_total{{model="lookup"}}[{WINDOW_S:g}s]))',
            f"min(count_over_time(up[{SHOWN_S:g}s]))",
            "min(model:flambeau_requests_slow:ratio_rate1h) + 1",
        ):
            prometheus.wait_for(traffic, lambda found: found > 0)
        rows = [row for dashboard in dashboards for row in dashboard.rows]
        explained = {
            f"{row.title} / {panel.title}" for row in rows if row.absent for panel in row.panels
        }
        (empty,) = prometheus.wait_until(
            lambda: [empty_panels(prometheus, dashboards)],
            lambda found: found[0] <= explained,
            f"panels without data, beyond those of {explained},",
        )
    assert len(empty) >= 8, "the rows that say so have nothing to show"
    assert [row.title for row in QUEUE.rows if row.note], "the page says what it is of"


def empty_panels(prometheus: PrometheusProcess, dashboards: tuple[Dashboard, ...]) -> set[str]:
    """Returns the panels none of whose queries has data."""
    return {
        key
        for dashboard in dashboards
        for key, found in ask(prometheus, dashboard, SHOWN_S, WINDOW_S).items()
        if not any(one.has_data for one in found)
    }


def test_each_process_tells_what_the_reference_says(fleet: Fleet) -> None:
    assert fleet.server.worker is not None
    pages = {
        "gateway": fleet.server.metrics_text(),
        "worker": fleet.server.worker.metrics_text(),
        "trainer": fleet.trainer.metrics(),
    }
    for process, page in pages.items():
        run_tool("promtool", "check", "metrics", text=page)
        told = {
            sample.name
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.startswith("flambeau_")
        }
        expected = [m for m in all_metrics() if process in m.processes]
        missing = {m.name for m in expected if not any(name in told for name in names(m))}
        assert missing == SELDOM[process]


TLS = {
    "flambeau_tls_certificate_not_after_timestamp_seconds",
    "flambeau_tls_reloads_total",
}
PAYLOAD_SAMPLES = {"flambeau_payload_samples_total", "flambeau_dropped_payload_samples_total"}
ROLLOUTS = {
    "flambeau_mirrored_pairs_total",
    "flambeau_dropped_mirrors_total",
    "flambeau_drawn_fallbacks_total",
}
SELDOM = {
    "gateway": {
        "flambeau_degraded_requests_total",
        "flambeau_http2_floods_total",
        *TLS,
        *PAYLOAD_SAMPLES,
        *ROLLOUTS,
    },
    "worker": {
        *TLS,
        "flambeau_rollout_step",
        "flambeau_rollout_moves_total",
        "flambeau_store_cache_reads_total",
    },
    "trainer": TLS,
}
"""Metrics without series until an event, or a setting."""


def names(metric: Metric) -> list[str]:
    return [metric.name, f"{metric.name}_count"]


def test_a_request_is_counted_by_one_process_so_that_sums_are_right(fleet: Fleet) -> None:
    own = fleet.server.metric("flambeau_requests_total")
    assert fleet.server.worker is not None
    assert fleet.server.worker.metric("flambeau_requests_total") == 0
    fleet.prometheus.wait_for("sum(flambeau_requests_total)", lambda found: found == own)
    executed = fleet.server.worker.metric("flambeau_batch_size_sum")
    fleet.prometheus.wait_for("sum(flambeau_batch_size_sum)", lambda found: found == executed)


def test_a_duration_leads_to_the_trace_of_a_request_that_took_it(fleet: Fleet) -> None:
    trace_id = secrets.token_hex(16)
    sampled = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    assert infer(fleet.server, "linear", linear_input(ROW), headers=sampled).status == 200
    buckets = 'flambeau_request_duration_seconds_bucket{model="linear"}'
    found = fleet.prometheus.wait_until(
        lambda: [
            one for one in fleet.prometheus.exemplars(buckets) if one.labels["trace_id"] == trace_id
        ],
        bool,
        f"exemplar of trace {trace_id}",
    )
    (exemplar,) = found
    assert exemplar.labels == {"trace_id": trace_id}
    assert exemplar.series["job"] == "flambeau-gateway"
    assert (exemplar.series["version"], exemplar.series["protocol"]) == ("2", "rest")
    assert 0 < exemplar.value <= float(exemplar.series["le"])
    fleet.collector.wait_for(lambda spans: any(span.trace_id == trace_id for span in spans))
