"""The Helm chart is generated from k8s/, and Helm makes of it what kustomize makes of k8s/."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.helm_chart import ADDING, CHANGING, CHART, KEPT, LABELS, ON, chart, in_order, key_of
from deploy.helm_chart import rendered as kustomized
from services.gateway.config import GatewayConfig
from services.settings import settings_from
from tests.k8s.rendering import KUBERNETES, ROOT, Object, kubectl, of_kind, render
from tests.k8s.test_pods import VERSION

RELEASE, NAMESPACE = "serving", "models"
OF_OPERATOR = {"PrometheusRule"}
"""Kinds of the component `prometheus-operator`, which the chart leaves to deploy/prometheus."""
SETS = [
    pytest.param({"storeS3": True, "access": True}, id="keys"),
    pytest.param({"storeS3": False, "storeVolume": True, "hpa": False}, id="volume"),
    pytest.param({"registry": True, "modelRollouts": True, "tls": True}, id="registry"),
    pytest.param({"redisExternal": True, "registry": True}, id="redis"),
    pytest.param(dict.fromkeys((*ADDING, *CHANGING), True), id="all"),
    pytest.param(dict.fromkeys((*ADDING, *CHANGING), False), id="none"),
]


def helm_objects(values: Object, name: str = RELEASE) -> dict[tuple[str, str], Object]:
    """Renders the chart by Helm itself."""
    helm: Any = pytest.importorskip("helm_python", reason="`make k8s-validate` installs it")
    with helm.Chart.load(str(CHART)) as loaded:
        texts = loaded.render(values, name=name, namespace=NAMESPACE)
    found = [one for text in texts.values() for one in yaml.safe_load_all(text) if one]
    assert len({key_of(one) for one in found}) == len(found)
    return {key_of(one): one for one in found}


def of_kustomize(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Returns objects of kustomize as the chart has them: names, labels and namespace of Helm's."""
    text = yaml.safe_dump(objects)
    text = re.sub(r"flambeau-settings-[a-z0-9]{10}\b", "flambeau-settings", text)
    text = text.replace("managed-by: kustomize", "managed-by: Helm")
    text = text.replace("io/instance: flambeau", f"io/instance: {RELEASE}")
    text = text.replace("namespace: flambeau", f"namespace: {NAMESPACE}")
    return {key_of(one): one for one in yaml.safe_load(text)}


def without_own(found: Object) -> Object:
    """Removes the chart's own annotations: what stays, and the settings in place of their hash."""
    own = found["metadata"].get("annotations", {})
    kept = own.pop("helm.sh/resource-policy", None)
    assert (kept == "keep") is (found["kind"] in KEPT), found["kind"]
    if not own:
        found["metadata"].pop("annotations", None)
    template = found["spec"]["template"] if "template" in found.get("spec", {}) else {}
    annotations = template.get("metadata", {}).get("annotations", {})
    annotations.pop("checksum/settings", None)
    if not annotations:
        template.get("metadata", {}).pop("annotations", None)
    return found


def assert_same(
    made: dict[tuple[str, str], Object], expected: dict[tuple[str, str], Object]
) -> None:
    assert made.keys() == expected.keys()
    for key, found in made.items():
        assert without_own(found) == expected[key], key


def test_the_chart_is_the_generated_one() -> None:
    kubectl()
    made = chart()
    there = {str(p.relative_to(CHART)): p.read_text() for p in CHART.rglob("*") if p.is_file()}
    assert there.keys() == made.keys(), "run `make helm`"
    for name, text in made.items():
        assert there[name] == text, f"{name}: run `make helm`"


def test_by_default_it_is_the_overlay_cpu() -> None:
    """Without its rules and dashboards, and the namespace, which Helm makes."""
    objects = [
        one
        for one in render("overlays/cpu")
        if one["kind"] not in {*OF_OPERATOR, "Namespace"}
        and "grafana_dashboard" not in one["metadata"].get("labels", {})
    ]
    assert_same(helm_objects({}), of_kustomize(objects))


@pytest.mark.parametrize("components", SETS)
def test_components_are_those_of_kustomize(components: dict[str, bool]) -> None:
    on = {name for name in ON if components.get(name, True)}
    on |= {name for name, is_on in components.items() if is_on}
    on -= {"registryRoutes"}
    if {"registry", "gatewayApi"} <= on:
        on.add("registryRoutes")
    wanted = {name: is_on for name, is_on in components.items() if name != "registryRoutes"}
    made = helm_objects({"components": wanted})
    assert_same(made, of_kustomize(kustomized(in_order(on))))


def test_values_are_where_they_belong() -> None:
    made = helm_objects(
        {
            "images": {"gateway": "registry.example.org/gateway@sha256:1"},
            "store": "s3://mine/models",
            "components": {"hpa": False},
            "replicas": {"gateway": 3},
            "arguments": {"gateway": ["--max-request-bytes=1048576"]},
            "resources": {"gateway": {"limits": {"memory": "3Gi"}}},
            "gateway": {"restHost": "models.example.com"},
        }
    )
    deployment = made["Deployment", "flambeau-gateway"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/gateway@sha256:1"
    assert deployment["replicas"] == 3
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "3Gi"}
    arguments = [one.replace("$(QUEUE)", "redis://r") for one in container["args"]]
    assert settings_from(arguments, GatewayConfig, "").max_request_bytes == 2**20
    assert made["ConfigMap", "flambeau-settings"]["data"]["STORE"] == "s3://mine/models"
    assert made["HTTPRoute", "flambeau"]["spec"]["hostnames"] == ["models.example.com"]
    listeners = made["Gateway", "flambeau"]["spec"]["listeners"]
    assert listeners[0]["hostname"] == "models.example.com"


def test_the_page_s_values_are_accepted_and_set_what_they_say() -> None:
    page = (ROOT / "docs/guides/kubernetes.md").read_text().split("## Helm")[1]
    values = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    made = helm_objects(values)
    assert ("Deployment", "flambeau-registry") in made
    assert made["Deployment", "flambeau-inference"]["spec"]["replicas"] == 4
    assert made["ConfigMap", "flambeau-settings"]["data"]["STORE"] == values["store"]
    for name in ("gateway", "inference", "trainer"):
        (container,) = made["Deployment", f"flambeau-{name}"]["spec"]["template"]["spec"][
            "containers"
        ]
        assert container["image"] == values["images"][name]
    told = page.split("\n## ")[0]
    known = yaml.safe_load((CHART / "values.yaml").read_text())["components"]
    assert [name for name in known if f"`{name}`" not in told] == []


def test_another_store_restarts_the_pods() -> None:
    def annotations(store: str) -> Object:
        found = helm_objects({"store": store})["Deployment", "flambeau-inference"]
        return dict(found["spec"]["template"]["metadata"]["annotations"])

    assert annotations("s3://a/b") == annotations("s3://a/b") != annotations("s3://a/c")


@pytest.mark.parametrize(
    "values", [{"stoer": "s3://a"}, {"components": {"acess": True}}, {"replicas": {"gateway": "2"}}]
)
def test_a_misspelt_value_is_refused(values: Object) -> None:
    helm: Any = pytest.importorskip("helm_python", reason="`make k8s-validate` installs it")
    with helm.Chart.load(str(CHART)) as loaded, pytest.raises(helm.HelmError):
        loaded.render(values, name=RELEASE, namespace=NAMESPACE)


def test_every_component_is_in_the_chart_or_left_out_for_a_reason() -> None:
    left_out = {
        "egress", "gpu", "keda", "keda-streams", "kserve", "open", "prometheus-operator",
        "samples-s3", "train-job", "verify-job", "workload-identity",
    }  # fmt: skip
    folders = {path.name for path in (KUBERNETES / "components").iterdir()}
    told = {folder.partition("/")[0] for folder in (ADDING | CHANGING).values()}
    assert folders == told | left_out
    page = (ROOT / "docs/guides/kubernetes.md").read_text()
    section = page.split("## Helm")[1].split("\n## ")[0]
    assert [name for name in sorted(left_out) if f"`{name}`" not in section] == []


def test_labels_are_those_of_the_overlays() -> None:
    assert LABELS["app.kubernetes.io/version"] == VERSION
    (found,) = (
        one for one in of_kind(render("overlays/cpu"), "Deployment")
        if one["metadata"]["name"] == "flambeau-gateway"
    )  # fmt: skip
    assert LABELS.items() <= found["metadata"]["labels"].items()
    assert Path(CHART / "values.yaml").is_file()
