"""Recording and alerting rules for Prometheus, derived from the objectives of versions.

In: the objectives of models. Out: rule groups, as a file for Prometheus or an object of its
operator.

Burn rates: an error budget covers 30 days; a burn rate of 1 uses it up in exactly that time. Two
windows must agree, so that an alert starts soon and ends soon (Site Reliability Workbook,
chapter 5, "Multiwindow, Multi-Burn-Rate Alerts").
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from flambeau.monitoring.alerts import ALERTS, BUDGET_ALERTS, Alert
from flambeau.monitoring.runbooks import RUNBOOK_URL, url_of_runbook
from model_store.slo import DEFAULT_SLO, Slo

FAILURES = (
    'code=~"500|502|503|504|INTERNAL|UNKNOWN|UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|'
    'DATA_LOSS"'
)
"""Codes of server-side failures. Overload is one: clients were promised an answer."""
PER_MODEL = "namespace, model"
"""Labels that identify a model in ratios and objectives: models of one name in two Kubernetes
namespaces are two models. Outside Kubernetes the series lack that label, and are one model."""
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
NAMESPACE = "{{ with $labels.namespace }} in namespace {{ . }}{{ end }}"
"""Suffix of summaries: the namespace, for series that have one."""
_METRIC = re.compile(r"\b((?:model:)?flambeau_[\w:]+|up)\b(\{)?")
MIN_BAD = 5
"""Failures below which no alert fires, however few requests there were."""

HEADER = (
    "# Generated: `make dashboards` writes this one, and `flambeau alerts --store URL` the same\n"
    "# with the objectives of the models in a store.\n"
)


@dataclass(frozen=True, slots=True)
class Burn:
    """One pair of windows."""

    severity: str
    factor: float
    long: str
    short: str


BURNS = (
    Burn("page", 14.4, "1h", "5m"),
    Burn("page", 6, "6h", "30m"),
    Burn("ticket", 3, "1d", "2h"),
    Burn("ticket", 1, "3d", "6h"),
)


def rule_groups(
    objectives: Mapping[str, Slo], runbook_url: str = RUNBOOK_URL, namespace: str = ""
) -> list[dict[str, Any]]:
    """Returns every rule group.

    Args:
        objectives: objectives by model; every other model has the defaults.
        runbook_url: pattern of the URL of an alert's runbook (`runbooks.RUNBOOK_URL`).
        namespace: Kubernetes namespace to limit all rules to; empty for every namespace.
    """
    groups: list[dict[str, Any]] = [
        {"name": "flambeau-objectives", "rules": _objectives(objectives)},
        {"name": "flambeau-ratios", "rules": _ratios(objectives)},
        {"name": "flambeau-budgets", "rules": [_burning(*one) for one in _budgets()]},
        {"name": "flambeau-alerts", "rules": [_alert(alert) for alert in ALERTS]},
    ]
    for rule in (rule for group in groups for rule in group["rules"]):
        if namespace:
            rule["expr"] = _within(namespace, rule["expr"])
        if "alert" in rule:
            rule["annotations"]["runbook_url"] = url_of_runbook(rule["alert"], runbook_url)
    return groups


def _within(namespace: str, expression: str) -> str:
    """Limits an expression to one namespace: each of its metrics gets a label matcher."""
    matcher = f'namespace="{namespace}"'
    return _METRIC.sub(
        lambda found: f"{found[1]}{{{matcher}," if found[2] else f"{found[1]}{{{matcher}}}",
        expression,
    )


def rules_file(
    objectives: Mapping[str, Slo], runbook_url: str = RUNBOOK_URL, namespace: str = ""
) -> str:
    """Renders a rules file for Prometheus; see `rule_groups`."""
    return HEADER + _yaml({"groups": rule_groups(objectives, runbook_url, namespace)})


def prometheus_rule(
    objectives: Mapping[str, Slo], runbook_url: str = RUNBOOK_URL, namespace: str = ""
) -> str:
    """Renders the rules as an object of the Prometheus operator (monitoring.coreos.com/v1)."""
    return HEADER + _yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": "flambeau",
                **({"namespace": namespace} if namespace else {}),
                "labels": {
                    "app.kubernetes.io/name": "flambeau",
                    "app.kubernetes.io/component": "monitoring",
                    "app.kubernetes.io/part-of": "flambeau",
                },
            },
            "spec": {"groups": rule_groups(objectives, runbook_url, namespace)},
        }
    )  # fmt: skip


def _yaml(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True)


def _others(objectives: Mapping[str, Slo]) -> str:
    """Returns the label matcher of the models with default objectives."""
    return f'model!~"{"|".join(["unknown", *map(_escaped, sorted(objectives))])}"'


def _escaped(model: str) -> str:
    """Escapes a name for a PromQL regular expression; names have no other special characters."""
    return model.replace(".", "\\\\.")


def _objectives(objectives: Mapping[str, Slo]) -> list[dict[str, Any]]:
    """Records each model's objectives as series, so that the alerts are the same for all."""
    chosen = [(f'model="{model}"', slo) for model, slo in sorted(objectives.items())]
    rules = []
    for selector, slo in [*chosen, (_others(objectives), DEFAULT_SLO)]:
        known = f"group by ({PER_MODEL}) (flambeau_requests_total{{{selector}}})"
        for name, share in (("availability", slo.availability), ("latency", slo.latency_share)):
            record = f"model:flambeau_{name}:objective"
            rules.append({"record": record, "expr": f"{share:g} * {known}"})
    return rules


def _ratios(objectives: Mapping[str, Slo]) -> list[dict[str, Any]]:
    """Records each model's share of failed and of slow requests, over each window."""
    by_latency: dict[float, list[str]] = defaultdict(list)
    for model, slo in sorted(objectives.items()):
        by_latency[slo.latency_ms].append(_escaped(model))
    bounds = [(ms, f'model=~"{"|".join(names)}"') for ms, names in sorted(by_latency.items())]
    bounds.append((DEFAULT_SLO.latency_ms, _others(objectives)))
    rules = []
    for window in WINDOWS:
        every = 'flambeau_requests_total{model!="unknown"}'
        failed = f'flambeau_requests_total{{model!="unknown",{FAILURES}}}'
        rules.append(
            {
                "record": f"model:flambeau_requests_failed:ratio_rate{window}",
                "expr": f"sum by ({PER_MODEL}) (rate({failed}[{window}])) / "
                f"sum by ({PER_MODEL}) (rate({every}[{window}]))",
            }
        )
        for latency_ms, selector in bounds:
            seconds = "flambeau_request_duration_seconds"
            fast = f'{seconds}_bucket{{{selector},le="{latency_ms / 1000}"}}'
            timed = f"{seconds}_count{{{selector}}}"
            rules.append(
                {
                    "record": f"model:flambeau_requests_slow:ratio_rate{window}",
                    "expr": f"1 - sum by ({PER_MODEL}) (rate({fast}[{window}])) / "
                    f"sum by ({PER_MODEL}) (rate({timed}[{window}]))",
                }
            )
    return rules


def _budgets() -> list[tuple[str, str, str, Burn]]:
    """Returns alert, ratio and objective of every pair of windows."""
    errors, latency = BUDGET_ALERTS
    kinds = ((errors, "failed", "availability"), (latency, "slow", "latency"))
    return [(*kind, burn) for kind in kinds for burn in BURNS]


def _burning(name: str, ratio: str, objective: str, burn: Burn) -> dict[str, Any]:
    record = f"model:flambeau_requests_{ratio}:ratio_rate"
    limit = f"on ({PER_MODEL}) {burn.factor:g} * (1 - model:flambeau_{objective}:objective)"
    bad = (
        f"{record}{burn.long} * on ({PER_MODEL}) sum by ({PER_MODEL}) "
        f'(increase(flambeau_requests_total{{model!="unknown"}}[{burn.long}]))'
    )
    what = "failing" if ratio == "failed" else "too slow"
    return {
        "alert": name,
        "expr": f"{record}{burn.long} > {limit}\nand {record}{burn.short} > {limit}\n"
        f"and {bad} >= {MIN_BAD}",
        "labels": {"severity": burn.severity, "window": burn.long},
        "annotations": {
            "summary": f"Model {{{{ $labels.model }}}}{NAMESPACE}: "
            f"{{{{ $value | humanizePercentage }}}} of its requests are {what}",
            "description": f"Over {burn.long} and {burn.short} the error budget of 30 days "
            f"burns at least {burn.factor:g} times as fast as the objective allows.",
            "dashboard": "flambeau-model",
        },
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **({"for": alert.lasting} if alert.lasting else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary + NAMESPACE,
            "dashboard": alert.dashboard,
        },
    }
