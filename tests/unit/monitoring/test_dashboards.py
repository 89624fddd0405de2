"""Dashboards: valid for Grafana, with existing metrics, and up to date."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flambeau.monitoring.dashboards import DASHBOARDS, GPU
from flambeau.monitoring.generated import generated_files
from flambeau.monitoring.metric_reference import all_metrics
from flambeau.monitoring.panels import Dashboard, dashboard_json
from flambeau.monitoring.rules import rule_groups
from flambeau.monitoring.runbooks import read_runbooks, runbook_dashboard
from tests.dashboards.answers import filled_in
from tests.fixtures.prometheus_process import run_tool

ROOT = Path(__file__).parents[3]
OF_THE_LIBRARY = {
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
    "process_max_fds", "up",
}  # fmt: skip
SUFFIXES = ("_bucket", "_sum", "_count")
documents = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)


def known_names() -> set[str]:
    """Returns every name that a query may have."""
    found = set(OF_THE_LIBRARY)
    for metric in all_metrics():
        ends = SUFFIXES if metric.kind == "histogram" else ("",)
        found |= {metric.name + end for end in ends}
    return found | {
        rule["record"] for g in rule_groups({}) for rule in g["rules"] if "record" in rule
    }


def named(expression: str) -> set[str]:
    """The metrics that an expression asks for: of ours, of the library, of recording rules."""
    return set(re.findall(r"\b(?:model:flambeau|flambeau|process)_[a-z0-9_:]+|\bup\b", expression))


@pytest.mark.parametrize(
    ("name", "text"), generated_files(ROOT).items(), ids=lambda part: part[-40:]
)
def test_what_is_committed_is_what_is_generated(name: str, text: str) -> None:
    assert (ROOT / name).read_text() == text, "run make dashboards"


@documents
def test_panels_have_a_number_each_and_do_not_overlap(dashboard: Dashboard) -> None:
    panels: list[dict[str, Any]] = dashboard_json(dashboard)["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


def test_texts_do_not_overlap_either() -> None:
    panels = dashboard_json(runbook_dashboard(read_runbooks(ROOT)))["panels"]
    bottom = 0
    for panel in panels:
        assert panel["gridPos"]["y"] == bottom
        bottom += panel["gridPos"]["h"]


@documents
def test_every_query_of_ours_is_of_the_chosen_namespaces(dashboard: Dashboard) -> None:
    for query in (query for panel in dashboard.panels() for query in panel.queries):
        for name, selector in re.findall(
            r"\b((?:flambeau|process|model:flambeau)_\w+[\w:]*)({[^}]*})?", query.expression
        ):
            if not name.endswith(":objective"):  # matched with a ratio that is
                assert 'namespace=~"$namespace"' in selector, query.expression
    document = dashboard_json(dashboard)
    for choice in document["templating"]["list"]:
        if choice["name"] in {"model", "version"}:
            assert 'namespace=~"$namespace"' in choice["query"]["query"]
    (pages,) = document["annotations"]["list"]
    assert 'namespace=~"$namespace"' in pages["expr"]


@documents
def test_an_import_replaces_and_no_installation_is_named(dashboard: Dashboard) -> None:
    document = dashboard_json(dashboard)
    assert document["id"] is None
    assert document["uid"] == dashboard.uid
    text = json.dumps(document)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {dashboard.uid, "${datasource}"}
    names = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", "".join(
        query.expression for panel in dashboard.panels() for query in panel.queries
    )))  # fmt: skip
    assert used - {"__rate_interval", "__range"} <= names
    assert {"datasource", "namespace"} <= names


@documents
def test_queries_ask_for_what_there_is(dashboard: Dashboard) -> None:
    asked = {name for p in dashboard.panels() for q in p.queries for name in named(q.expression)}
    assert asked - known_names() == set()
    assert asked


def test_rules_ask_for_what_there_is() -> None:
    asked = {name for g in rule_groups({}) for rule in g["rules"] for name in named(rule["expr"])}
    assert asked - known_names() == set()


def test_gpu_queries_are_promql(tmp_path: Path) -> None:
    """There is no DCGM exporter to ask; the others are run against a server under load."""
    queries = [query for panel in GPU.panels() for query in panel.queries]
    rules = [
        {"record": f"gpu:query{n}", "expr": filled_in(query.expression, 60, 3600)}
        for n, query in enumerate(queries)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "gpu", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run_tool("promtool", "check", "rules", str(path))


def test_provisioning_names_what_there_is() -> None:
    folder = ROOT / "deploy/grafana"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (generator,) = kustomization["configMapGenerator"]
    files = {f"dashboards/{path.name}" for path in (folder / "dashboards").iterdir()}
    assert set(generator["files"]) == files
    (provider,) = yaml.safe_load(
        (folder / "provisioning/dashboards/flambeau.yaml").read_text()
    )["providers"]  # fmt: skip
    assert provider["type"] == "file"
    assert provider["options"]["path"]
