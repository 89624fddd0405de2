"""Requirements of every pod in every overlay: limits, probes, no privileges, labels."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.k8s.rendering import (
    OVERLAYS,
    ROOT,
    Object,
    Workload,
    of_kind,
    quantity,
    render,
    selects,
    workloads,
)

PARTS = ("ClusterServingRuntime", "Deployment", "StatefulSet")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"
VARIANTS = {
    "gateway": {"", "auth"}, "inference": {"", "cuda"}, "registry": {""}, "trainer": {""},
}  # fmt: skip
"""Image variants, by tag suffix: docs/guides/kubernetes.md describes how each is built."""
MADE_BY_THE_USER = {
    "flambeau-api-keys", "flambeau-edge-tls", "flambeau-model-rollouts", "flambeau-queue",
    "flambeau-samples", "flambeau-store", "flambeau-tls", "flambeau-webhooks",
}  # fmt: skip
"""Secrets that docs/guides/kubernetes.md has users create."""
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
OF_CLUSTER = {"kube-root-ca.crt"}
"""ConfigMaps that each namespace has."""


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(f"overlays/{request.param}")


@pytest.fixture
def pods(objects: list[Object]) -> list[Workload]:
    found = list(workloads(objects))
    assert found
    return found


def test_a_pod_has_the_rights_of_the_restricted_profile(pods: list[Workload]) -> None:
    """Source: https://kubernetes.io/docs/concepts/security/pod-security-standards."""
    for pod in pods:
        own, whole = pod.container["securityContext"], pod.spec.get("securityContext", {})
        both: dict[str, Any] = whole | own
        assert both["runAsNonRoot"] is True, pod.name
        assert both["runAsUser"] > 0, pod.name
        assert both["seccompProfile"] == {"type": "RuntimeDefault"}, pod.name
        assert own["allowPrivilegeEscalation"] is False, pod.name
        assert own["capabilities"] == {"drop": ["ALL"]}, pod.name
        assert own["readOnlyRootFilesystem"] is True, pod.name
        for volume in pod.spec.get("volumes", []):
            (kind,) = volume.keys() - {"name"}
            assert kind in VOLUMES, pod.name
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            assert name not in pod.spec


def test_a_pod_has_no_token_of_the_cluster(objects: list[Object], pods: list[Workload]) -> None:
    accounts = {o["metadata"]["name"]: o for o in of_kind(objects, "ServiceAccount")}
    for pod in pods:
        if pod.kind != "ClusterServingRuntime":  # there the InferenceService sets it
            assert pod.spec["automountServiceAccountToken"] is False, pod.name
            assert accounts[pod.spec["serviceAccountName"]]["automountServiceAccountToken"] is False
    for service in of_kind(objects, "InferenceService"):
        assert service["spec"]["predictor"]["automountServiceAccountToken"] is False


def test_a_container_has_requests_and_limits(pods: list[Workload]) -> None:
    for pod in pods:
        resources = pod.container["resources"]
        for name in ("cpu", "memory"):
            assert quantity(resources["requests"][name]) <= quantity(resources["limits"][name])
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume:
                assert volume["emptyDir"]["sizeLimit"], f"{pod.name}: {volume['name']}"


def test_a_part_tells_when_it_has_started_is_ready_and_lives(pods: list[Workload]) -> None:
    for pod in pods:
        if pod.kind not in PARTS:
            continue
        ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = pod.container[kind]
            asked = probe.get("httpGet") or probe.get("tcpSocket")
            # KServe's runtimes name only the routed port; probes use numbers for others.
            known = {*ports, *ports.values(), *([8002] if pod.kind == PARTS[0] else [])}
            assert asked is None or asked["port"] in known, pod.name
        if pod.name == "flambeau-redis":
            continue
        paths = {
            kind: pod.container[kind]["httpGet"]["path"]
            for kind in pod.container
            if "Probe" in kind
        }
        assert paths == {
            "startupProbe": "/v2/health/live",
            "readinessProbe": "/v2/health/ready",
            "livenessProbe": "/v2/health/live",
        }


def test_an_image_is_pinned(pods: list[Workload]) -> None:
    for pod in pods:
        name, _, tag = pod.container["image"].partition(":")
        assert "/" not in name.removeprefix("flambeau/"), "a registry is the user's to name"
        if name.startswith("flambeau/"):
            assert tag.partition("-")[0] == VERSION
            assert tag.partition("-")[2] in VARIANTS[name.removeprefix("flambeau/")]
        else:
            assert tag.count(".") == 2, f"{name}:{tag} moves"


def test_dev_fits_a_cluster_of_4_gib() -> None:
    """A node of a laptop's, with everything at once: the Job, too, while it trains. Kubernetes' own
    pods ask for some 300 MiB."""
    objects = render("overlays/dev")
    found = list(workloads(objects))
    replicas = {o["metadata"]["name"]: o["spec"].get("replicas", 1) for o in objects if "spec" in o}
    assert {pod.name for pod in found} == {
        "flambeau-gateway", "flambeau-inference", "flambeau-trainer", "flambeau-redis",
        "flambeau-train",
    }  # fmt: skip

    def whole(kind: str, name: str) -> float:
        return sum(
            int(replicas[pod.name]) * quantity(pod.container["resources"][kind][name])
            for pod in found
        )

    assert whole("requests", "memory") <= 3 * 2**30
    assert whole("limits", "memory") <= 4 * 2**30
    assert whole("requests", "cpu") <= 1.5


def test_labels_say_what_it_is(objects: list[Object], pods: list[Workload]) -> None:
    for found in objects:
        if found["kind"] in {"Namespace", "NetworkPolicy", "ConfigMap"}:
            continue
        assert {NAME, COMPONENT, "app.kubernetes.io/part-of"} <= found["metadata"]["labels"].keys()
    for found in objects:
        said = found["metadata"].get("labels", {}).get("app.kubernetes.io/version", VERSION)
        assert said == VERSION
    for pod in pods:
        assert pod.labels.get(NAME, "flambeau") == "flambeau"


def test_a_selector_takes_its_own_pods_and_no_others(
    objects: list[Object], pods: list[Workload]
) -> None:
    by_name = {pod.name: pod for pod in pods}
    for found in of_kind(objects, "Deployment", "StatefulSet", "PodDisruptionBudget"):
        selector = found["spec"]["selector"]
        chosen = {pod.name for pod in pods if selects(selector, pod.labels)}
        assert chosen == {found["metadata"]["name"]}
    for found in of_kind(objects, "Service"):
        selector = {"matchLabels": found["spec"]["selector"]}
        (chosen_pod,) = (pod for pod in pods if selects(selector, pod.labels))
        named = {port["name"] for port in by_name[chosen_pod.name].container["ports"]}
        assert {port["targetPort"] for port in found["spec"]["ports"]} <= named


def test_a_part_with_many_pods_keeps_most_of_them_and_spreads(
    objects: list[Object], pods: list[Workload]
) -> None:
    budgets = {o["metadata"]["name"]: o["spec"] for o in of_kind(objects, "PodDisruptionBudget")}
    for pod in pods:
        if pod.kind in {"Deployment", "StatefulSet"}:
            # minAvailable would block the drain of a node with a single pod.
            assert budgets[pod.name]["maxUnavailable"] == 1
        if pod.name in {"flambeau-gateway", "flambeau-inference"}:
            (spread,) = pod.spec["topologySpreadConstraints"]
            assert selects(spread["labelSelector"], pod.labels)


def test_an_autoscaler_is_alone_and_the_deployment_leaves_the_number_to_it(
    objects: list[Object],
) -> None:
    deployments = {o["metadata"]["name"]: o["spec"] for o in of_kind(objects, "Deployment")}
    scaled = [
        found["spec"]["scaleTargetRef"]["name"]
        for found in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    ]
    assert len(scaled) == len(set(scaled))
    assert [name for name in scaled if "replicas" in deployments[name]] == []


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Yields every ConfigMap, Secret and claim that an object names, as kind and name."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    if not isinstance(value, dict):
        return
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("configMap", "ConfigMap"),
                      ("secretKeyRef", "Secret"), ("secretRef", "Secret")):  # fmt: skip
        if isinstance(value.get(key), dict):
            yield kind, value[key]["name"]
    if isinstance(value.get("secretName"), str):
        yield "Secret", value["secretName"]
    if isinstance(value.get("claimName"), str):
        yield "PersistentVolumeClaim", value["claimName"]
    for item in value.get("certificateRefs", []):
        yield item["kind"], item["name"]
    for item in value.values():
        yield from references(item)


def test_what_is_named_is_there_or_in_the_document(objects: list[Object]) -> None:
    made = {(found["kind"], found["metadata"]["name"]) for found in objects}
    document = (ROOT / "docs/guides/kubernetes.md").read_text()
    for kind, name in references(objects):
        if kind == "Secret":
            assert name in MADE_BY_THE_USER
            assert name in document
        elif name not in OF_CLUSTER:
            assert (kind, name) in made
