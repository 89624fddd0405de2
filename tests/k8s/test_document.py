"""Kustomize accepts the patches in docs/guides/kubernetes.md; they have the documented effect."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.rendering import (
    KUBERNETES,
    ROOT,
    Object,
    of_kind,
    quantity,
    render,
    rendered,
    selects,
    workloads,
)

DOCUMENT = (ROOT / "docs/guides/kubernetes.md").read_text()
BLOCKS: list[dict[str, Any]] = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
]
PATCHES = [block for block in BLOCKS if block.keys() == {"patches"}]


def with_patches(block: dict[str, Any], overlay: str, folder: Path) -> list[Object]:
    """Renders an overlay with the patches of a block of the document, in a namespace of its own."""
    above = os.path.relpath(KUBERNETES, folder.resolve())
    whole = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "models",
        "transformers": [f"{above}/namespaced"],
        "resources": [f"{above}/overlays/{overlay}"],
        "components": [],
        **block,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    return rendered(folder)


def patching(text: str) -> dict[str, Any]:
    """Returns the block of the document whose patches contain a text."""
    (found,) = (block for block in PATCHES if text in str(block))
    return found


def let_out(objects: list[Object], name: str) -> set[int]:
    """Returns the ports that a NetworkPolicy opens for egress to any address."""
    (policy,) = (o for o in of_kind(objects, "NetworkPolicy") if o["metadata"]["name"] == name)
    return {p["port"] for rule in policy["spec"]["egress"] for p in rule["ports"]}


def test_the_folder_of_one_s_own_renders_with_everything_that_was_set(tmp_path: Path) -> None:
    (block,) = (block for block in BLOCKS if block.get("kind") == "Kustomization")
    above = os.path.relpath(ROOT, tmp_path.resolve())
    text = yaml.safe_dump(block).replace("../flambeau", above)
    (tmp_path / "kustomization.yaml").write_text(text)
    objects = rendered(tmp_path)
    assert {o["metadata"].get("namespace") for o in objects if o["kind"] != "Namespace"} == {
        block["namespace"]
    }
    for pod in workloads(objects):
        if pod.name != "flambeau-redis":
            assert pod.container["image"].startswith("registry.example.org/flambeau/")
    (worker,) = (pod for pod in workloads(objects) if pod.name == "flambeau-inference")
    assert "--model=digits" in worker.container["args"]
    maps = [o["data"].get("STORE") for o in of_kind(objects, "ConfigMap")]
    assert "s3://my-bucket/models" in maps


def test_a_bucket_on_another_port_is_reached_with_the_patch(tmp_path: Path) -> None:
    objects = with_patches(patching("9000"), "outward", tmp_path)
    for name in ("flambeau-store", "flambeau-samples"):
        assert let_out(render("overlays/outward"), name) == {443}
        assert let_out(objects, name) == {443, 9000}


@pytest.mark.parametrize("overlay", ["cpu", "outward", "gpu", "tls"])
def test_credentials_may_come_from_the_service_account(overlay: str, tmp_path: Path) -> None:
    """No pod waits for a Secret of a bucket; the annotation goes where the document puts it."""
    objects = with_patches(patching("role-arn"), overlay, tmp_path)
    sources = [
        source
        for pod in workloads(objects)
        for source in pod.container.get("envFrom", [])
    ]  # fmt: skip
    assert sources
    for source in sources:
        assert source["secretRef"]["optional"] is True
    annotated = {
        account["metadata"]["name"]
        for account in of_kind(objects, "ServiceAccount")
        if "eks.amazonaws.com/role-arn" in account["metadata"].get("annotations", {})
    }
    assert annotated == {"flambeau-inference", "flambeau-trainer"}
    for pod in workloads(objects):
        if pod.spec["serviceAccountName"] in annotated:
            assert "AWS_REGION" in [one["name"] for one in pod.container["env"]]


def test_pods_that_use_buckets_may_ask_their_node_for_credentials(tmp_path: Path) -> None:
    above = os.path.relpath(KUBERNETES, tmp_path.resolve())
    component = {"components": [f"{above}/components/workload-identity"]}
    objects = with_patches(component, "outward", tmp_path)
    (policy,) = (
        o
        for o in of_kind(objects, "NetworkPolicy")
        if o["metadata"]["name"] == "flambeau-workload-identity"
    )
    for pod in workloads(objects):
        chosen = selects(policy["spec"]["podSelector"], pod.labels)
        assert chosen is bool(pod.container.get("envFrom")), pod.name


def test_the_namespace_is_made_by_the_first_command() -> None:
    """The following commands create Secrets there, before anything else is applied."""
    commands = re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)[0].splitlines()
    first = commands[0].split("#")[0].split()
    assert first[:3] == ["kubectl", "apply", "-k"]
    (made,) = rendered(ROOT / first[3])
    assert (made["kind"], made["metadata"]["name"]) == ("Namespace", "flambeau")
    for overlay in ("dev", "cpu", "outward", "gpu", "tls"):
        (same,) = of_kind(render(f"overlays/{overlay}"), "Namespace")
        assert made["metadata"]["labels"].items() <= same["metadata"]["labels"].items()


def test_what_dev_takes_is_what_the_document_says() -> None:
    pods = list(workloads(render("overlays/dev")))
    for kind, words in (("limits", "are {:g} GiB together"), ("requests", "request {:g} GiB")):
        whole = sum(quantity(pod.container["resources"][kind]["memory"]) for pod in pods)
        assert words.format(whole / 2**30) in " ".join(DOCUMENT.split())
