"""Network policies deny all but the needed connections, and autoscalers query real metrics."""

import re

import pytest

from services.gateway.request_accounting import RequestAccounting
from services.queueing.directory import Directory
from services.queueing.records import DEFAULT_PRIORITY, Lane
from services.queueing.redis_streams.keys import GROUP, LaneKeys
from services.telemetry.metrics import Metrics
from tests.k8s.rendering import (
    OVERLAYS,
    Object,
    arguments,
    of_kind,
    render,
    selects,
    workloads,
)

OF_REDIS = {"flambeau-gateway", "flambeau-inference", "flambeau-registry", "flambeau-trainer"}
WITH_PODS = tuple(overlay for overlay in OVERLAYS if overlay != "kserve")


@pytest.fixture(params=WITH_PODS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(f"overlays/{request.param}")


def test_what_is_not_said_is_denied(objects: list[Object]) -> None:
    (deny,) = (o for o in of_kind(objects, "NetworkPolicy") if not o["spec"]["podSelector"])
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    within = [o for o in objects if o["kind"] not in {"CustomResourceDefinition", "Namespace"}]
    assert {o["metadata"].get("namespace") for o in within} == {"flambeau"}


def test_every_port_is_let_in_and_none_that_is_not_there(objects: list[Object]) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    for pod in workloads(objects):
        mine = [o["spec"] for o in policies if selects(o["spec"]["podSelector"], pod.labels)]
        let_in = {
            port["port"]
            for spec in mine
            for rule in spec.get("ingress", [])
            for port in rule["ports"]
        }
        assert let_in == {port["name"] for port in pod.container.get("ports", [])}, pod.name
        assert [spec for spec in mine if "from" not in str(spec.get("ingress", "from"))] == []


def test_whoever_needs_redis_reaches_it_and_it_lets_them_in(objects: list[Object]) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    redis = [pod for pod in workloads(objects) if pod.name == "flambeau-redis"]
    for pod in workloads(objects):
        if pod.name not in OF_REDIS:
            continue
        out = [
            rule
            for o in policies
            if selects(o["spec"]["podSelector"], pod.labels)
            for rule in o["spec"].get("egress", [])
            if 6379 in {port["port"] for port in rule["ports"]}
        ]
        assert out, f"{pod.name} does not reach Redis"
        for server in redis:
            assert any(selects(to["podSelector"], server.labels) for r in out for to in r["to"])
            let_in = [
                source["podSelector"]
                for o in policies
                if selects(o["spec"]["podSelector"], server.labels)
                for rule in o["spec"].get("ingress", [])
                for source in rule["from"]
                if "podSelector" in source
            ]
            assert any(selects(selector, pod.labels) for selector in let_in), pod.name


def test_the_controller_reaches_the_registry_and_it_lets_it_in() -> None:
    objects = render("overlays/rollouts")
    pods = {pod.name: pod for pod in workloads(objects)}
    controller, registry = pods["flambeau-model-rollouts"], pods["flambeau-registry"]
    (service,) = (o for o in of_kind(objects, "Service") if "registry" in o["metadata"]["name"])
    (port,) = (one for one in service["spec"]["ports"] if one["name"] == "http")
    url = f"http://{service['metadata']['name']}:{port['port']}"
    assert f"--registry={url}" in arguments(controller, objects)
    policies = {o["metadata"]["name"]: o["spec"] for o in of_kind(objects, "NetworkPolicy")}
    (way,) = (rule for rule in policies["flambeau-model-rollouts"]["egress"] if "to" in rule)
    assert selects(way["to"][0]["podSelector"], registry.labels)
    assert [one["port"] for one in way["ports"]] == [port["targetPort"]]
    entrance = policies["flambeau-registry"]["ingress"][0]
    assert "from" not in entrance, "callers come from outside, too"
    assert "http" in {one["port"] for one in entrance["ports"]}


def test_a_store_in_a_bucket_is_reached(objects: list[Object]) -> None:
    for pod in workloads(objects):
        if not pod.container.get("envFrom"):
            continue
        out = {
            port["port"]
            for o in of_kind(objects, "NetworkPolicy")
            if selects(o["spec"]["podSelector"], pod.labels)
            for rule in o["spec"].get("egress", [])
            for port in rule["ports"]
        }
        assert 443 in out, pod.name


def test_pods_are_scraped_at_a_port_they_have(objects: list[Object]) -> None:
    for monitor in of_kind(objects, "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        chosen = [p for p in workloads(objects) if selects(monitor["spec"]["selector"], p.labels)]
        expected = (OF_REDIS | {"flambeau-model-rollouts"}) & {p.name for p in workloads(objects)}
        assert {pod.name for pod in chosen} == expected
        for pod in chosen:
            assert endpoint["port"] in {port["name"] for port in pod.container["ports"]}


def test_what_scales_reads_what_there_is() -> None:
    real = metric_labels()
    lane = LaneKeys(Lane("digits", 1))
    streams = {lane.streams[DEFAULT_PRIORITY - 1], *LaneKeys(Lane("digits", 1), jobs=True).streams}
    queries, lagging = [], set()
    for folder in WITH_PODS:
        for scaled in of_kind(render(f"overlays/{folder}"), "ScaledObject"):
            for trigger in scaled["spec"]["triggers"]:
                said = trigger["metadata"]
                if trigger["type"] == "redis-streams":
                    lagging.add(said["stream"])
                    assert said["consumerGroup"] == GROUP
                    # Without a worker gateways accept no request, so a stream could wake none.
                    assert scaled["spec"]["minReplicaCount"] > 0
                else:
                    queries.append(said["query"])
        for scaled in of_kind(render(f"overlays/{folder}"), "HorizontalPodAutoscaler"):
            for metric in scaled["spec"]["metrics"]:
                queries += [metric["external"]["metric"]["name"]] if "external" in metric else []
    assert lagging == streams
    assert queries
    assert [fault for query in queries for fault in faults_of_query(query, real)] == []


def test_a_query_for_what_no_gateway_can_say_is_found() -> None:
    """Else the test above could find nothing."""
    real = metric_labels()
    for query, fault in {
        "flambeau_refusal_total": "no metric",
        'flambeau_refusals_total{cause="QueueFullError"}': "no label",
        'flambeau_refusals_total{reason="BackendError"}': "no value",
        'flambeau_refusals_total{namespace="default"}': "no value",
        'process_start_time_seconds{job="flambeau-gateways"}': "no value",
    }.items():
        assert fault in str(faults_of_query(query, real)), query
    assert faults_of_query('flambeau_refusals_total{reason="QueueFullError"}', real) == []


def metric_labels() -> dict[str, dict[str, set[str]]]:
    """Returns labels by metric, each with the values of a freshly started gateway; and the labels
    that Prometheus adds to every pod's metrics."""
    metrics = Metrics("test")
    RequestAccounting(metrics, Directory(), access_log=False)
    added = {
        "namespace": {"flambeau"},
        "job": {f"flambeau-{part}" for part in ("gateway", "inference", "trainer")},
        **{"pod": set(), "instance": set()},
    }
    found = {}
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        own: dict[str, set[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                own.setdefault(label, set()).add(value)
        found[name] = added | own
    return found


def faults_of_query(query: str, real: dict[str, dict[str, set[str]]]) -> list[str]:
    """Returns unknown metrics, and selected labels that a metric never has."""
    faults = []
    for name, selector in re.findall(r"\b((?:flambeau|process)_\w+)(?:{([^}]*)})?", query):
        if name not in real:
            faults.append(f"{name}: no metric")
            continue
        for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
            if label not in real[name]:
                faults.append(f"{name}: no label {label}")
            elif value not in real[name][label]:
                faults.append(f"{name}: no value {value} of {label}")
    return faults
