"""Every object has the fields that the API knows of its kind, and no others."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.k8s.rendering import OVERLAYS, Object, of_kind, render

KUBERNETES_VERSIONS = ("1.30", "1.33", "1.36")
"""The oldest that is promised (a preStop that sleeps), and later ones."""
SCHEMAS = {
    schema["properties"]["kind"]["const"]: schema
    for path in sorted((Path(__file__).parent / "schemas").glob("*.yaml"))
    if (schema := yaml.safe_load(path.read_text()))
}


def own_kinds(objects: list[Object]) -> list[Object]:
    return [found for found in objects if found["kind"] not in SCHEMAS]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_custom_resources_fit_their_schemas(overlay: str) -> None:
    for found in of_kind(render(f"overlays/{overlay}"), *SCHEMAS):
        jsonschema.validate(found, SCHEMAS[found["kind"]])


def test_every_schema_is_one_and_all_but_that_of_generated_rules_are_used() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    rendered = {o["kind"] for overlay in OVERLAYS for o in render(f"overlays/{overlay}")}
    assert set(SCHEMAS) - rendered <= {"PrometheusRule"}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_built_in_kinds_fit_kubernetes(overlay: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="`make k8s-validate` installs it"
    )
    for found in own_kinds(render(f"overlays/{overlay}")):
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_what_kserve_runs_is_a_pod(version: str) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="`make k8s-validate` installs it"
    )
    (runtime,) = of_kind(render("overlays/kserve"), "ClusterServingRuntime")
    spec = {name: runtime["spec"][name] for name in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-kserve"}, "spec": spec}
    kubernetes_validate.validate(pod, version, strict=True)
