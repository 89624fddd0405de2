"""Alert rules: each fires when it should and not when it should not, as promtool evaluates them."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flambeau.cli import app
from flambeau.monitoring.alerts import ALERTS
from flambeau.monitoring.objectives import stored_objectives
from flambeau.monitoring.panels import dashboard_json
from flambeau.monitoring.rules import BURNS, PER_MODEL, prometheus_rule, rule_groups, rules_file
from flambeau.monitoring.runbooks import (
    NAMES,
    RUNBOOK_URL,
    read_runbooks,
    runbook_dashboard,
    url_of_runbook,
)
from model_store.slo import DEFAULT_SLO, LATENCIES_MS, Slo
from model_store.store import ModelStore
from services.telemetry.metrics import SECONDS
from tests.fixtures.alert_cases import CASES, SHARES, burn_case, case, evaluate, expected, traffic
from tests.fixtures.prometheus_process import run_tool
from tests.fixtures.store_versions import draft_in

ROOT = Path(__file__).parents[3]


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]
    assert all(list(by) == [burn.long for burn in BURNS] for by in SHARES.values())


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    cases = [
        case(series, expected(minute, alert, fires))
        for alert, (minute, *both) in CASES.items()
        for series, fires in zip(both, (True, False), strict=True)
    ]
    evaluate(tmp_path, cases, files=[rule_groups({})[-1:]])


COUNTED = {
    alert: (name, by)
    for alert, (_, fires, _) in CASES.items()
    for name, values in fires.items()
    if "_total" in name and alert not in {"FlambeauNoWorkers", "FlambeauOverloaded"}
    for by in [int(values.split()[-1].partition("x")[0])]
}
"""By alert that counts single events: its counter, and how many of them fire it."""


def test_every_alert_on_single_events_is_held_to_them() -> None:
    increasing = {a.name for a in ALERTS if "increase(" in a.expression}
    assert set(COUNTED) == increasing
    assert len(increasing) == 9


def test_the_first_that_is_ever_seen_of_a_counter_fires(tmp_path: Path) -> None:
    """A version that fails as it is loaded, a trainer that finds a job without its worker as it
    starts: Prometheus never saw them at 0. It lasts no longer than the window, and what was there
    before counts anew neither after a gap in what was seen nor after a restart."""
    cases = []
    for alert, (name, by) in COUNTED.items():
        cases += [
            case({name: f"_x10 {by}x150"}, expected(11, alert, True), expected(140, alert, False)),
            case({name: f"_x10 {by}x2 0x150"}, expected(20, alert, True)),
            case({name: f"{by}x90 _x12 {by}x90"}, *(
                expected(minute, alert, False) for minute in (103, 110, 120, 157, 163, 170)
            )),
            case({name: "_x10 0x150"}, expected(11, alert, False), expected(30, alert, False)),
        ]  # fmt: skip
    evaluate(tmp_path, cases, files=[rule_groups({})[-1:]])


@pytest.mark.parametrize(("window", "step_m"), [("1h", 2), ("6h", 10), ("1d", 60), ("3d", 120)])
def test_budgets_that_burn(tmp_path: Path, window: str, step_m: int) -> None:
    evaluate(tmp_path, [burn_case(window, step_m)], step_m)


def test_it_ends_soon_after_the_failures_and_few_failures_wake_nobody(tmp_path: Path) -> None:
    series = {
        'flambeau_requests_total{model="over",code="500"}': "0+100x60 6000x20",
        'flambeau_requests_total{model="over",code="200"}': "0+900x80",
        'flambeau_requests_total{model="few",code="500"}': "0x50 2x60",
        'flambeau_requests_total{model="few",code="200"}': "0+1x80",
    }
    name = "FlambeauErrorBudgetBurn"
    looks = [
        expected(60, name, True, window="1h", model="over"),
        expected(72, name, False, window="1h", model="over"),
        expected(53, name, False, window="1h", model="few"),
    ]
    evaluate(tmp_path, [case(series, *looks)])


def test_each_model_is_held_to_its_own_promises(tmp_path: Path) -> None:
    """Names of models that contain characters of regular expressions are quoted."""
    strict = Slo(availability=0.9999, latency_ms=10)
    lax, slow = "FlambeauErrorBudgetBurn", "FlambeauLatencyBudgetBurn"
    series = {
        **traffic(0.005, 0.5, 80, "strict.v2"),
        **traffic(0.005, 0.0, 80, "strictxv2"),
        **traffic(0.5, 0.5, 80, "lax"),
    }
    looks = [
        expected(70, lax, True, window="1h", model="strict.v2"),
        expected(70, lax, False, window="1h", model="strictxv2"),
        expected(70, lax, False, window="1h", model="lax"),
        # It has no bucket of 10 ms here, so nothing is known of it, and nothing fires.
        expected(70, slow, False, window="1h", model="strict.v2"),
        expected(70, slow, True, window="1h", model="lax"),
    ]
    objectives = {"strict.v2": strict, "lax": Slo(availability=0.9)}
    evaluate(tmp_path, [case(series, *looks, step_m=2)], 2, [rule_groups(objectives)])


def test_stores_of_two_namespaces_keep_their_promises_side_by_side(tmp_path: Path) -> None:
    """Prometheus has loaded the rules of both: the same model promises more in one of them."""
    name = "FlambeauErrorBudgetBurn"
    files = [
        rule_groups({"m": Slo(availability=share)}, namespace=namespace)
        for namespace, share in (("prod", 0.999), ("dev", 0.9))
    ]
    series = {
        key.replace("{", f'{{namespace="{namespace}",'): values
        for namespace in ("prod", "dev")
        for key, values in traffic(0.05, 0.0, 80, "m").items()
    }
    looks = [
        expected(70, name, True, window="1h", model="m", namespace="prod"),
        expected(70, name, False, window="1h", model="m", namespace="dev"),
    ]
    evaluate(tmp_path, [case(series, *looks, step_m=2)], 2, files)


def test_rules_of_one_namespace_look_at_no_other() -> None:
    expressions = [rule["expr"] for group in rule_groups({"m": Slo()}, namespace="prod")
                   for rule in group["rules"]]  # fmt: skip
    for expression in expressions:
        for metric, selector in re.findall(
            r"\b((?:model:)?flambeau_[\w:]+|up)\b({[^}]*})?", expression
        ):
            assert 'namespace="prod"' in selector, f"{metric} in {expression}"
    document = yaml.safe_load(prometheus_rule({}, namespace="prod"))
    assert document["metadata"]["namespace"] == "prod"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    rules = [rule for group in rule_groups({}) for rule in group["rules"] if "alert" in rule]
    names = {rule["alert"] for rule in rules}
    assert names == {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "ticket"}
    for name in names:
        text = (ROOT / f"docs/runbooks/{name}.md").read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert headings == [name, "Meaning", "Diagnosis", "Remedy"]


@pytest.mark.parametrize(
    "pattern", [RUNBOOK_URL, "https://wiki.example.org/{alert}", "https://a.example/d/x?p={panel}"]
)
def test_an_alert_links_to_its_runbook_by_an_absolute_url(pattern: str) -> None:
    groups = rule_groups({}, pattern)
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        found = rule["annotations"]["runbook_url"]
        assert re.fullmatch(r"https?://[^/{}]+/[^{}]+", found)
        assert found == url_of_runbook(rule["alert"], pattern)


def test_the_panel_that_an_alert_links_to_is_its_runbook() -> None:
    """The text is that of `docs/runbooks`, with links reduced to their text."""
    texts = read_runbooks(ROOT)
    panels = dashboard_json(runbook_dashboard(texts))["panels"]
    by_number = {str(panel["id"]): panel for panel in panels}
    for name in NAMES:
        panel = by_number[url_of_runbook(name, "{panel}")]
        assert (panel["title"], panel["type"]) == (name, "text")
        content = panel["options"]["content"]
        assert "## Meaning" in content
        assert not re.search(r"\]\((?!https://)", content)


AGGREGATION = r"\b(?:sum|max|min|avg|count|group|topk|quantile)\b(?! by \(namespace)"
MATCHING = r"\b(?:on|ignoring)\b(?! \(namespace)"


def test_every_aggregation_and_match_keeps_the_namespace() -> None:
    """One that did not would mix installations that one Prometheus watches."""
    expressions = [rule["expr"] for group in rule_groups({"m": Slo()}) for rule in group["rules"]]
    assert [e for e in expressions if re.search(AGGREGATION, e) or re.search(MATCHING, e)] == []
    assert re.search(AGGREGATION, "sum(x)")
    assert re.search(MATCHING, "x / on (model) y")
    assert PER_MODEL.startswith("namespace")


def test_what_may_be_promised_is_what_is_measured() -> None:
    assert {ms / 1000 for ms in LATENCIES_MS} <= set(map(float, SECONDS))
    with pytest.raises(ValueError, match="300 is not measured; take 250, or another of"):
        Slo(latency_ms=300)


def test_a_store_s_objectives_are_those_of_what_is_in_production(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    first, second = Slo(availability=0.9), Slo(latency_ms=10)
    for slo in (first, second):
        store.publish(draft_in(tmp_path / "draft", slo=slo), tmp_path / "draft")
    store.publish(draft_in(tmp_path / "draft", "old"), tmp_path / "draft")
    assert stored_objectives(store) == {"digits": second, "old": DEFAULT_SLO}
    store.promote("digits", 1)
    assert stored_objectives(store)["digits"] == first


def test_the_operator_s_object_has_the_same_groups() -> None:
    object_, file = (yaml.safe_load(make({"m": Slo()})) for make in (prometheus_rule, rules_file))
    assert object_["spec"]["groups"] == file["groups"] == rule_groups({"m": Slo()})


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "rules/flambeau.yaml"),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "../alertmanager/alertmanager.yml"),
    ],
    ids=lambda command: command[-1],
)
def test_the_tools_take_what_is_deployed(command: tuple[str, ...]) -> None:
    run_tool(*command, cwd=ROOT / "deploy/prometheus")


def test_the_command_writes_rules_with_links_of_one_s_own(tmp_path: Path) -> None:
    store, output = str(tmp_path), tmp_path / "rules.yaml"
    pattern = "https://wiki.example.org/{alert}"
    for option, kind in (((), "groups"), (("--operator",), "spec")):
        asked = ["alerts", "--store", store, "--output", str(output), "--runbook-url", pattern]
        done = CliRunner().invoke(app, [*asked, *option])
        assert done.exit_code == 0, done.output
        written = yaml.safe_load(output.read_text())
        groups = written.get("groups") or written["spec"]["groups"]
        assert kind in written
        assert groups == rule_groups({}, pattern)
    asked = ["alerts", "--store", store, "--output", str(output), "--namespace", "prod"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert yaml.safe_load(output.read_text())["groups"] == rule_groups({}, namespace="prod")
