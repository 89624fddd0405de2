"""Every overlay works in any namespace: none of its objects keeps another namespace's name.

Each is rendered as docs/guides/kubernetes.md describes, from a user's folder that sets
`namespace:`.
The alert rules of two namespaces are loaded together, as one Prometheus would, and evaluated.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.alert_cases import CASES, Series, case, evaluate, expected, traffic
from tests.k8s.rendering import OVERLAYS, Object, of_kind, render, render_in

NAMESPACES = ("flambeau", "elsewhere")
CLUSTER_WIDE = {"ClusterServingRuntime", "CustomResourceDefinition", "Namespace"}


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def texts(value: Any) -> Iterator[str]:
    """Yields every string within an object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def named_namespaces(found: Object, services: set[str]) -> set[str]:
    """Returns namespaces that an object names as its own: in queries, and in hosts of Services."""
    names = set()
    for text in texts({key: value for key, value in found.items() if key != "data"}):
        names |= set(re.findall(r'\bnamespace=~?"([^"$]*)"', text))
        for service, namespace in re.findall(r"\b([a-z0-9-]+)\.([a-z0-9-]+)(?=\.svc\b|:\d)", text):
            names |= {namespace} if service in services else set()
    return names


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_what_names_a_namespace_names_its_own(overlay: str, namespace: str) -> None:
    objects = render_in(namespace, overlay)
    services = {found["metadata"]["name"] for found in of_kind(objects, "Service")}
    for found in objects:
        if found["kind"] == "Namespace":
            assert found["metadata"]["name"] == namespace
        if found["kind"] not in CLUSTER_WIDE:
            assert found["metadata"]["namespace"] == namespace
        assert named_namespaces(found, services) <= {namespace}, found["metadata"]["name"]


def test_two_namespaces_differ_in_their_name_alone(overlay: str) -> None:
    """Names that no pattern above knows are found so: first in one, then in the other."""
    one, other = (render_in(name, overlay) for name in ("first-place", "second-place"))
    moved = str(one).replace("first-place", "second-place")
    assert moved == str(other)
    assert "first-place" in str(one)


def test_what_keda_asks_names_its_namespace() -> None:
    """Else the tests above would find nothing to compare."""
    found = {
        overlay: [
            named_namespaces(scaled, {"flambeau-redis"})
            for scaled in of_kind(render_in("elsewhere", overlay), "ScaledObject")
        ]
        for overlay in ("gpu", "tls")
    }
    assert found == {"gpu": [{"elsewhere"}], "tls": [{"elsewhere"}]}
    for scaled in of_kind(render_in("elsewhere", "gpu"), "ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            query = trigger["metadata"]["query"]
            metrics = re.findall(r"\b(?:flambeau|process)_\w+", query)
            assert query.count('namespace="elsewhere"') == len(metrics), query


def load(share: int, started_s: int) -> Series:
    """Returns the load of a namespace, scaled by a factor, and the start time of its gateway."""
    lane = '{model="m",version="1"}'
    return {
        f"flambeau_stream_waiting_requests{lane}": f"{3 * share}x20",
        f"flambeau_stream_taken_requests{lane}": f"{2 * share}x20",
        f"flambeau_waiting_jobs{lane}": f"{share}x20",
        f"flambeau_running_jobs{lane}": f"{share}x20",
        'flambeau_refusals_total{reason="ModelNotReadyError"}': f"0+{6 * share}x20",
        'process_start_time_seconds{job="flambeau-gateway"}': f"{started_s}x20",
    }


LOADS = {"flambeau": (1, 0), "elsewhere": (10, 300)}
ASKED_AT_M = 10
WANTED = {
    "flambeau": {"requests": 5, "jobs": 2, "refused": 12, "started": 0},
    "elsewhere": {"requests": 50, "jobs": 20, "refused": 120, "started": 1},
}
"""Expected results of each query, by trigger, ten minutes after the start of Prometheus."""


def test_keda_scales_each_namespace_by_its_own_load_alone(tmp_path: Path) -> None:
    """Its queries, evaluated beside another namespace's load, and where there is no other."""
    both: Series = {}
    for namespace, (share, started_s) in LOADS.items():
        both = {**both, **within(namespace, load(share, started_s))}
    cases = []
    for namespace in NAMESPACES:
        (scaled,) = of_kind(render_in(namespace, "gpu"), "ScaledObject")
        queries = {t["name"]: t["metadata"]["query"] for t in scaled["spec"]["triggers"]}
        assert queries.keys() == WANTED[namespace].keys()
        (other,) = set(NAMESPACES) - {namespace}
        for series, own in ((both, True), (within(other, load(7, 300)), False)):
            cases.append(case(series, *(
                {
                    "expr": query,
                    "eval_time": f"{ASKED_AT_M}m",
                    "exp_samples": [
                        {"labels": "{}", "value": WANTED[namespace][name] if own else 0}
                    ],
                }
                for name, query in queries.items()
            )))  # fmt: skip
    evaluate(tmp_path, cases)


def test_without_the_transformer_the_check_finds_the_old_name() -> None:
    """A folder that sets `namespace:` alone scales by another namespace's load."""
    objects = render_in("elsewhere", "gpu", transformed=False)
    (scaled,) = of_kind(objects, "ScaledObject")
    assert named_namespaces(scaled, set()) == {"flambeau"}


def test_rules_are_the_same_in_every_overlay_and_namespace() -> None:
    found = [
        rule["spec"]["groups"]
        for overlay in OVERLAYS
        for namespace in NAMESPACES
        for rule in of_kind(render_in(namespace, overlay), "PrometheusRule")
    ]
    assert len(found) == 2 * len([o for o in OVERLAYS if of_kind(
        render(f"overlays/{o}"), "PrometheusRule"
    )])  # fmt: skip
    assert all(groups == found[0] for groups in found)


def both_rules() -> list[list[dict[str, Any]]]:
    """Returns the rule groups of two namespaces: a Prometheus of the operator loads both."""
    return [
        of_kind(render_in(namespace, "cpu"), "PrometheusRule")[0]["spec"]["groups"]
        for namespace in NAMESPACES
    ]


def within(namespace: str, series: Series) -> dict[str, str]:
    """Returns the same series with the label that Prometheus gives to pods of a namespace."""
    label = f'namespace="{namespace}"'
    return {
        name.replace("{", f"{{{label},", 1) if "{" in name else f"{name}{{{label}}}": values
        for name, values in series.items()
    }


def test_an_alert_of_one_namespace_neither_fires_nor_is_silenced_in_another(
    tmp_path: Path,
) -> None:
    cases = []
    for alert, (minute, fires, quiet) in CASES.items():
        for ill, well in (("prod", "dev"), ("dev", "prod")):
            cases.append(case(
                within(ill, fires) | within(well, quiet),
                expected(minute, alert, True, namespace=ill),
                expected(minute, alert, False, namespace=well),
            ))  # fmt: skip
        # Beside them, series without that label: one installation outside Kubernetes.
        cases.append(case(
            dict(fires) | within("dev", quiet),
            expected(minute, alert, True, namespace=""),
            expected(minute, alert, False, namespace="dev"),
        ))  # fmt: skip
    groups = [groups[-1:] for groups in both_rules()]
    evaluate(tmp_path, cases, files=groups)


def test_a_busy_namespace_silences_no_other(tmp_path: Path) -> None:
    """Workers and traffic of dev, while production has none of the first; a flood of good answers
    there, while production fails; refusals of production among many accepted elsewhere."""
    alert = "FlambeauNoWorkers"
    workers = within("prod", {
        "flambeau_fleet_workers": "0x20", "flambeau_requests_total": "0+60x20",
    }) | within("dev", {
        "flambeau_fleet_workers": "7x20", "flambeau_requests_total": "0+100000x20",
    })  # fmt: skip
    refused = within("prod", {
        "flambeau_refusals_total": "0+2x60", "flambeau_requests_total": "0+100x60",
    }) | within("dev", {
        "flambeau_refusals_total": "0x60", "flambeau_requests_total": "0+100000x60",
    })  # fmt: skip
    cases = [
        case(workers, expected(10, alert, True, namespace="prod"),
             expected(10, alert, False, namespace="dev")),
        case(refused, expected(40, "FlambeauOverloaded", True, namespace="prod"),
             expected(40, "FlambeauOverloaded", False, namespace="dev")),
    ]  # fmt: skip
    evaluate(tmp_path, cases, files=both_rules())


def test_a_model_s_budget_is_that_of_its_namespace(tmp_path: Path) -> None:
    """The same model in both: 100 times the traffic of dev dilutes no error rate of production."""
    busy = {name: values.replace("0+", "0+100") for name, values in traffic(0, 0, 80, "m").items()}
    bad = {"FlambeauErrorBudgetBurn": (0.02, 0.0), "FlambeauLatencyBudgetBurn": (0.0, 0.2)}
    cases = [
        case(
            within("prod", traffic(*shares, 80, "m")) | within("dev", busy),
            expected(70, alert, True, window="1h", model="m", namespace="prod"),
            expected(70, alert, False, window="1h", model="m", namespace="dev"),
            step_m=2,
        )
        for alert, shares in bad.items()
    ]
    evaluate(tmp_path, cases, 2, files=both_rules())
