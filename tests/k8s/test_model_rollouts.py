"""The kind ModelRollout: its schema is structural, and its controller has the rights it needs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from model_store.rollouts.guards import Guards
from services.kubernetes import controller, reconciliation
from services.kubernetes.model_rollout import GROUP_VERSION, KIND, PLURAL, Spec, Status, spec_of
from tests.fixtures.object_api_server import CRD, SCHEMA, pruned_to
from tests.k8s.rendering import Object, of_kind, render, workloads

OVERLAY = "overlays/rollouts"
VERSION = CRD["spec"]["versions"][0]
SPEC = SCHEMA["properties"]["spec"]
COST_OF_A_RULE = 1_000
"""Characters; the API server bounds the cost of each rule by the sizes that it may meet."""


def model_rollout(**spec: Any) -> Object:
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {"name": "digits", "namespace": "models", "uid": "u", "generation": 1},
        "spec": {"model": "digits", "version": 4, **spec},
    }


def faults(found: Object) -> list[str]:
    return [one.message for one in jsonschema.Draft4Validator(SCHEMA).iter_errors(found)]


def nodes(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def test_the_kind_is_what_the_controller_asks_for() -> None:
    group, version = GROUP_VERSION.split("/")
    assert (CRD["spec"]["group"], VERSION["name"], CRD["spec"]["scope"]) == (
        group, version, "Namespaced",
    )  # fmt: skip
    assert (CRD["spec"]["names"]["kind"], CRD["spec"]["names"]["plural"]) == (KIND, PLURAL)
    assert CRD["metadata"]["name"] == f"{PLURAL}.{group}"
    assert VERSION["subresources"] == {"status": {}}


def test_the_schema_is_structural() -> None:
    """Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources, "Specifying a
    structural schema": a type everywhere, and nothing that would keep unknown fields."""
    jsonschema.Draft4Validator.check_schema(SCHEMA)
    for path, schema in nodes(SCHEMA):
        assert schema.get("type") in {"object", "array", "string", "integer", "number", "boolean"}
        assert (
            not {"$ref", "allOf", "anyOf", "oneOf", "not", "additionalProperties"} & schema.keys()
        )
        if schema["type"] == "array":
            assert schema["items"], path
            assert schema["maxItems"] <= 32, path
        if schema["type"] == "string" and path.startswith(".spec"):
            assert "maxLength" in schema or "enum" in schema, path
        for rule in schema.get("x-kubernetes-validations", []):
            assert len(rule["rule"]) < COST_OF_A_RULE
            assert rule["message"]


def test_schema_and_controller_know_the_same_fields() -> None:
    assert {field.alias for field in Spec.model_fields.values()} == SPEC["properties"].keys()
    status = {field.alias for field in Status.model_fields.values()}
    assert status == SCHEMA["properties"]["status"]["properties"].keys()
    guards = SPEC["properties"]["guards"]["properties"]
    assert guards.keys() == Guards.model_fields.keys() - {"risk"}
    for name, schema in guards.items():
        assert schema["properties"].keys() == getattr(Guards(), name).model_dump().keys()
    assert set(SPEC["properties"]["disabledGuards"]["items"]["enum"]) == guards.keys()


def test_defaults_are_those_of_the_controller() -> None:
    whole = pruned_to(SCHEMA, model_rollout())
    assert faults(whole) == []
    assert spec_of(whole) == spec_of(model_rollout())


def test_printed_columns_are_fields() -> None:
    known = {path for path, _ in nodes(SCHEMA)} | {".metadata.creationTimestamp"}
    assert [
        c["name"] for c in VERSION["additionalPrinterColumns"] if c["jsonPath"] not in known
    ] == []


@pytest.mark.parametrize(
    "spec",
    [
        {"steps": ["1%", "12.5%", "100%"], "every": "1.5h", "sticky": "header:x-user"},
        {"mirror": "0%", "disabledGuards": ["disagreement"]},
        {"guards": {"latency": {"quantiles": [0.5], "ratio": 1.5}, "outputs": {"kind": "scores"}}},
    ],
)
def test_good_ones_fit(spec: Object) -> None:
    found = model_rollout(**spec)
    assert faults(found) == []
    spec_of(found)


@pytest.mark.parametrize(
    "spec",
    [
        {"version": 0}, {"version": "4"}, {"model": ""}, {"model": "a/b"}, {"model": "m" * 129},
        {"steps": []}, {"steps": ["10"]}, {"steps": ["101%"]}, {"steps": ["1%"] * 33},
        {"every": "5"}, {"every": "5min"}, {"sticky": "cookie:a"}, {"mirror": "-1%"},
        {"guards": {"errors": {"rate": 0}}}, {"guards": {"errors": {"rate": 1}}},
        {"guards": {"latency": {"ratio": 1}}}, {"disabledGuards": ["all"]},
        {"attempt": 0}, {"state": "Promoted"}, {"why": "w" * 251}, {"allowBreaking": "yes"},
    ],
)  # fmt: skip
def test_bad_ones_do_not(spec: Object) -> None:
    assert faults(model_rollout(**spec))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ({}, {}, ""),
        ({}, {"model": "other"}, "the model of a ModelRollout never changes"),
        ({}, {"steps": ["100%"]}, "the first step is below 100%"),
        (
            {},
            {"guards": {"latency": {"ratio": 2}}, "disabledGuards": ["latency"]},
            "not in both",
        ),
        ({}, {"guards": {"latency": {"ratio": 2}}, "disabledGuards": ["errors"]}, ""),
    ],
)
def test_rules_in_cel_refuse_what_they_say(old: Object, new: Object, message: str) -> None:
    celpy: Any = pytest.importorskip("celpy", reason="`make k8s-validate` installs it")
    before, after = model_rollout(**old), model_rollout(**new)
    said = []
    for path, schema in nodes(SCHEMA):
        value, old_value = at(after, path), at(before, path)
        if value is None:
            continue
        for rule in schema.get("x-kubernetes-validations", []):
            if "oldSelf" in rule["rule"] and old_value is None:
                continue
            environment = celpy.Environment()
            program = environment.program(environment.compile(rule["rule"]))
            names = {"self": celpy.json_to_cel(value), "oldSelf": celpy.json_to_cel(old_value)}
            if not program.evaluate(names):
                said.append(rule["message"])
    assert message in " ".join(said) if message else said == []


def at(found: Object, path: str) -> Any:
    """Returns the value at a path of `nodes`; None if there is none."""
    value: Any = found
    for name in path.split(".")[1:]:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def test_the_controller_has_the_rights_for_its_calls_and_no_others() -> None:
    objects = render(OVERLAY)
    (role,) = of_kind(objects, "Role")
    (binding,) = of_kind(objects, "RoleBinding")
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (pod,) = (one for one in workloads(objects) if one.name == "flambeau-model-rollouts")
    (subject,) = binding["subjects"]
    assert subject["name"] == pod.spec["serviceAccountName"]
    granted = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    calls = {"read": ("", "get"), "list": ("", "list"), "watch": ("", "watch"),
             "set_finalizers": ("", "patch"), "set_status": ("/status", "update")}  # fmt: skip
    text = "".join(
        Path(str(module.__file__)).read_text() for module in (controller, reconciliation)
    )
    made = set(re.findall(r"self\._objects\.(\w+)", text))
    assert granted == {(f"{PLURAL}{calls[name][0]}", calls[name][1]) for name in made}
    assert {rule["apiGroups"][0] for rule in role["rules"]} == {GROUP_VERSION.split("/")[0]}


def test_the_controller_alone_has_a_token_of_the_cluster_for_an_hour() -> None:
    for pod in workloads(render(OVERLAY)):
        sources = [
            source
            for volume in pod.spec.get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
        ]
        tokens = [one["serviceAccountToken"] for one in sources if "serviceAccountToken" in one]
        expected = [{"path": "token", "expirationSeconds": 3600}]
        assert tokens == (expected if pod.name == "flambeau-model-rollouts" else []), pod.name


def test_the_account_s_folder_is_where_the_settings_look() -> None:
    (pod,) = (o for o in workloads(render(OVERLAY)) if o.name == "flambeau-model-rollouts")
    mounts = {one["mountPath"] for one in pod.container["volumeMounts"]}
    (told,) = (a for a in pod.container["args"] if a.startswith("--kubernetes-account="))
    assert told.partition("=")[2] in mounts
