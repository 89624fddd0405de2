"""Every object has only fields that the API defines for its kind.

The schemas beside this file are manual excerpts of those of the custom resources. They and all
objects of the overlays were compared, field by field, with the schemas generated from the real
ones, and nothing differed: ScaledObject of KEDA 2.10 and 2.16, PodMonitor and PrometheusRule of
prometheus-operator 0.80, Gateway, HTTPRoute and GRPCRoute (as v1alpha2) of Gateway API 1.0,
ClusterServingRuntime and InferenceService of KServe 0.21.
"""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.k8s.rendering import OVERLAYS, Object, of_kind, render

KUBERNETES_VERSIONS = ("1.30", "1.33", "1.36")
"""The oldest supported version (a preStop that sleeps), and later ones."""
SCHEMAS = {
    schema["properties"]["kind"]["const"]: schema
    for path in sorted((Path(__file__).parent / "schemas").glob("*.yaml"))
    if (schema := yaml.safe_load(path.read_text()))
}


def own_kinds(objects: list[Object]) -> list[Object]:
    return [found for found in objects if found["kind"] not in SCHEMAS]


def faults_of_schema(found: Object) -> list[str]:
    """Returns the fields of a custom resource that its schema does not allow."""
    validator = jsonschema.Draft202012Validator(SCHEMAS[found["kind"]])
    return [error.message for error in validator.iter_errors(found)]


def faults_of_kubernetes(found: Object, version: str) -> list[str]:
    """Returns the fields of a built-in object that this version of Kubernetes does not know."""
    kubernetes_validate: Any = pytest.importorskip(
        "kubernetes_validate", reason="`make k8s-validate` installs it"
    )
    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_custom_resources_fit_their_schemas(overlay: str) -> None:
    for found in of_kind(render(f"overlays/{overlay}"), *SCHEMAS):
        assert faults_of_schema(found) == []


def test_every_schema_is_one_and_all_but_that_of_generated_rules_are_used() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    rendered = {o["kind"] for overlay in OVERLAYS for o in render(f"overlays/{overlay}")}
    assert set(SCHEMAS) - rendered <= {"PrometheusRule"}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_built_in_kinds_fit_kubernetes(overlay: str, version: str) -> None:
    for found in own_kinds(render(f"overlays/{overlay}")):
        assert faults_of_kubernetes(found, version) == []


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_what_kserve_runs_is_a_pod(version: str) -> None:
    for runtime in of_kind(render("overlays/kserve"), "ClusterServingRuntime"):
        spec = {name: runtime["spec"][name] for name in ("containers", "volumes")}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-kserve"}, "spec": spec}
        assert faults_of_kubernetes(pod, version) == []


def test_a_misspelt_field_is_found_in_every_kind() -> None:
    """Else the tests above could find nothing."""
    each = {o["kind"]: o for overlay in OVERLAYS for o in render(f"overlays/{overlay}")}
    for kind, found in each.items():
        wrong = found | {"spce": {}}
        faults = (
            faults_of_schema(wrong)
            if kind in SCHEMAS
            else faults_of_kubernetes(wrong, KUBERNETES_VERSIONS[0])
        )
        assert "spce" in str(faults), kind
