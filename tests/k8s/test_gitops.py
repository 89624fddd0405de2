"""The page for Argo CD and Flux: its objects fit, and its health checks say what it says."""

import re
from collections.abc import Callable
from typing import Any, get_args

import jsonschema
import pytest
import yaml

from services.kubernetes.conditions import with_conditions
from services.kubernetes.model_rollout import Phase, Status, spec_of
from tests.fixtures.object_api_server import SCHEMA
from tests.k8s.rendering import ROOT, Object

PAGE = (ROOT / "docs/guides/gitops.md").read_text()
BLOCKS: list[Object] = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
]
PHASES: tuple[Phase, ...] = get_args(Phase)
GENERATION = 3
HEALTH = {
    name: row.split("|")[2].strip()
    for row in PAGE.splitlines()
    if re.match(r"\| `\w+`.*(Progressing|Suspended|Healthy|Degraded)", row)
    for name in re.findall(r"`(\w+)`", row.split("|")[1])
}
"""Health in Argo CD by phase, as the page's table has it."""


def block(kind: str) -> Object:
    """Returns the page's object of a kind."""
    (found,) = (one for one in BLOCKS if one.get("kind") == kind)
    return found


def rolling(phase: Phase, observed: int = GENERATION) -> Object:
    """Returns an object in a phase, as the controller writes it."""
    status = Status(phase=phase, reason="said so", share="10%", observed_generation=observed)
    return {
        "apiVersion": "flambeau.dev/v1alpha1",
        "kind": "ModelRollout",
        "metadata": {"name": "digits", "generation": GENERATION},
        "status": with_conditions(status).document(),
    }


def argo_health() -> Callable[[Object], tuple[str, str]]:
    """Returns Argo CD's check: it runs the script with the object as `obj`."""
    lupa: Any = pytest.importorskip("lupa", reason="`make k8s-validate` installs it")
    script = block("ConfigMap")["data"]["resource.customizations.health.flambeau.dev_ModelRollout"]

    def check(found: Object) -> tuple[str, str]:
        lua = lupa.LuaRuntime()
        lua.globals().obj = lua.table_from(found, recursive=True)
        health = lua.execute(script)
        return health["status"], health["message"]

    return check


def kstatus(found: Object) -> str:
    """Returns the status that kstatus computes for an object of an unknown kind.

    Source: sigs.k8s.io/cli-utils, pkg/kstatus/README.md, "Statuses" and "Conditions".
    """
    metadata, status = found["metadata"], found.get("status", {})
    holds = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    if "Reconciling" in holds:
        return "InProgress"
    if "Stalled" in holds:
        return "Failed"
    return "Current" if "Ready" in holds else "InProgress"


def test_the_page_s_model_rollout_fits_the_kind() -> None:
    found = block("ModelRollout")
    assert list(jsonschema.Draft4Validator(SCHEMA).iter_errors(found)) == []
    assert (spec_of(found).model, spec_of(found).version) == ("digits", 4)


def test_both_deploy_the_same_folder() -> None:
    application = block("Application")["spec"]
    (flux,) = (one for one in BLOCKS if one.get("kind") == "Kustomization")
    assert flux["spec"]["path"].removeprefix("./") == application["source"]["path"] == "models"
    assert application["destination"]["namespace"] == block("ModelRollout")["metadata"]["namespace"]


@pytest.mark.parametrize("phase", PHASES)
def test_argo_cd_shows_the_health_of_the_table(phase: Phase) -> None:
    check = argo_health()
    health, message = check(rolling(phase))
    assert health == HEALTH[phase]
    assert "said so" in message


def test_argo_cd_waits_for_the_controller() -> None:
    check = argo_health()
    assert check(rolling("Promoted", GENERATION - 1))[0] == "Progressing"
    assert check({"metadata": {"generation": 1}})[0] == "Progressing"


@pytest.mark.parametrize("phase", PHASES)
def test_flux_reads_the_conditions_alike(phase: Phase) -> None:
    expected = {"Healthy": "Current", "Degraded": "Failed"}.get(HEALTH[phase], "InProgress")
    assert kstatus(rolling(phase)) == expected
    assert kstatus(rolling(phase, GENERATION - 1)) == "InProgress"


@pytest.mark.parametrize("phase", PHASES)
def test_one_expression_of_flux_holds_in_each_phase(phase: Phase) -> None:
    """Flux evaluates them with the object's fields as names."""
    celpy: Any = pytest.importorskip("celpy", reason="`make k8s-validate` installs it")
    (only,) = (one["spec"] for one in BLOCKS if "healthCheckExprs" in one.get("spec", {}))
    (check,) = only["healthCheckExprs"]
    found = rolling(phase)
    holds = []
    for name in ("current", "inProgress", "failed"):
        environment = celpy.Environment()
        program = environment.program(environment.compile(check[name]))
        fields = {field: celpy.json_to_cel(found[field]) for field in ("metadata", "status")}
        if program.evaluate(fields):
            holds.append(name)
    expected = {"Healthy": "current", "Suspended": "current", "Degraded": "failed"}
    assert holds == [expected.get(HEALTH[phase], "inProgress")]


def test_the_table_has_every_phase() -> None:
    assert HEALTH.keys() == set(PHASES)
