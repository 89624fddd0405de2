"""Alert rules: each fires when it should and not when it should not, as promtool evaluates them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from flambeau.monitoring.alerts import ALERTS
from flambeau.monitoring.objectives import stored_objectives
from flambeau.monitoring.rules import BURNS, prometheus_rule, rule_groups, rules_file, runbook
from model_store.slo import DEFAULT_SLO, LATENCIES_MS, Slo
from model_store.store import ModelStore
from services.telemetry.metrics import SECONDS
from tests.fixtures.prometheus_process import run_tool
from tests.fixtures.store_versions import draft_in

ROOT = Path(__file__).parents[3]
LANE = 'model="m",version="1"'
GATEWAY = 'job="flambeau-gateway",instance="a:1"'
OF_M = f'{{{LANE},instance="a:1"}}'
DAY_S = 86_400

Series = Mapping[str, str]

CASES: dict[str, tuple[int, Series, Series]] = {
    "FlambeauProcessDown": (5, {f"up{{{GATEWAY}}}": "0x20"}, {f"up{{{GATEWAY}}}": "1 0 1x20"}),
    "FlambeauNoWorkers": (
        10,
        {"flambeau_fleet_workers": "0x20", "flambeau_requests_total": "0+60x20"},
        {"flambeau_fleet_workers": "0x20", "flambeau_requests_total": "7x20"},
    ),
    "FlambeauWorkerLost": (
        40, {"flambeau_lost_workers_total": "0x35 1x20"}, {"flambeau_lost_workers_total": "3x60"},
    ),
    "FlambeauModelNotReady": (
        10,
        {f"flambeau_model_ready{OF_M}": "0x20"},
        {
            f"flambeau_model_ready{OF_M}": "0x20",
            f'flambeau_model_ready{{{LANE},instance="b:1"}}': "1x20",
        },
    ),
    "FlambeauQueueAge": (
        10,
        {f"flambeau_stream_oldest_age_seconds{OF_M}": "6x20"},
        {f"flambeau_stream_oldest_age_seconds{OF_M}": "4x20"},
    ),
    "FlambeauOverloaded": (
        40,
        {"flambeau_refusals_total": "0+2x60", "flambeau_requests_total": "0+100x60"},
        {
            'flambeau_refusals_total{reason="QueueFullError"}': "0+0.5x60",
            'flambeau_refusals_total{reason="ModelNotReadyError"}': "0+50x60",
            "flambeau_requests_total": "0+100x60",
        },
    ),
    "FlambeauDeadLetters": (
        90,
        {f"flambeau_dead_letters_total{OF_M}": "0x80 1x20"},
        {f"flambeau_dead_letters_total{OF_M}": "5x99"},
    ),
    "FlambeauVerificationFailed": (
        90,
        {f"flambeau_failed_verifications_total{OF_M}": "0x80 1x20"},
        {f"flambeau_failed_verifications_total{OF_M}": "5x99"},
    ),
    "FlambeauLoadFailed": (
        90,
        {f"flambeau_failed_loads_total{OF_M}": "0x80 1x20"},
        {f"flambeau_failed_loads_total{OF_M}": "5x99"},
    ),
    "FlambeauBackendRestarts": (
        20,
        {f'flambeau_worker_restarts_total{{{LANE},reason="died"}}': "0x10 4x20"},
        {f'flambeau_worker_restarts_total{{{LANE},reason="died"}}': "0x10 1x20"},
    ),
    "FlambeauJobsFailed": (
        30,
        {f'flambeau_finished_jobs_total{{{LANE},state="expired"}}': "0x20 1x20"},
        {f'flambeau_finished_jobs_total{{{LANE},state="done"}}': "0x20 9x20"},
    ),
    "FlambeauTrainingJobsFailed": (
        30,
        {'flambeau_training_finished_jobs_total{state="failed"}': "0x20 1x20"},
        {'flambeau_training_finished_jobs_total{state="succeeded"}': "0x20 1x20"},
    ),
    "FlambeauTrainingWorkerLost": (
        90,
        {"flambeau_training_takeovers_total": "0x80 1x20"},
        {"flambeau_training_takeovers_total": "2x99"},
    ),
    "FlambeauCertificateExpires": (
        90,
        {"flambeau_tls_certificate_not_after_timestamp_seconds": f"{13 * DAY_S}x99"},
        {"flambeau_tls_certificate_not_after_timestamp_seconds": f"{15 * DAY_S}x99"},
    ),
    "FlambeauCertificateExpiresSoon": (
        10,
        {"flambeau_tls_certificate_not_after_timestamp_seconds": f"{1 * DAY_S}x20"},
        {"flambeau_tls_certificate_not_after_timestamp_seconds": f"{3 * DAY_S}x20"},
    ),
}  # fmt: skip
"""Minute of the look, what fires, what does not; promtool's clock begins at 1970."""

SHARES = {
    "FlambeauErrorBudgetBurn": {
        "1h": (0.02, 0.01), "6h": (0.01, 0.005), "1d": (0.004, 0.002), "3d": (0.002, 0.0005),
    },
    "FlambeauLatencyBudgetBurn": {
        "1h": (0.2, 0.1), "6h": (0.1, 0.05), "1d": (0.04, 0.02), "3d": (0.02, 0.005),
    },
}  # fmt: skip
"""By the longer window: shares of bad requests that fire it, and that do not."""
MINUTES = {"1h": 70, "6h": 380, "1d": 26 * 60, "3d": 74 * 60}


def traffic(failed: float, slow: float, length: int, model: str) -> Series:
    """1000 requests a step, of which such shares fail or take more than 250 ms."""
    lane = f'model="{model}",version="1"'
    seconds = "flambeau_request_duration_seconds"
    return {
        f'flambeau_requests_total{{{lane},code="200"}}': f"0+{1000 * (1 - failed):g}x{length}",
        f'flambeau_requests_total{{{lane},code="500"}}': f"0+{1000 * failed:g}x{length}",
        f'{seconds}_bucket{{{lane},le="0.25"}}': f"0+{1000 * (1 - slow):g}x{length}",
        f"{seconds}_count{{{lane}}}": f"0+1000x{length}",
    }


def expected(minute: int, alert: str, fires: bool, **labels: str) -> dict[str, Any]:
    """A look of promtool's at one alert, which fires once or not at all."""
    chosen = {"alertname": alert, "alertstate": "firing", **labels}
    selector = ",".join(f'{name}="{value}"' for name, value in chosen.items())
    return {
        "expr": f"count(ALERTS{{{selector}}})",
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }


def case(series: Series, *looks: dict[str, Any], step_m: int = 1) -> dict[str, Any]:
    """One test of promtool's."""
    return {
        "interval": f"{step_m}m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": list(looks),
    }


def burn_case(window: str, step_m: int) -> dict[str, Any]:
    """Models side by side: each alert has one that fires it and one that does not."""
    minute = MINUTES[window]
    series: dict[str, str] = {}
    looks = []
    for alert, by_window in SHARES.items():
        for share, fires in zip(by_window[window], (True, False), strict=True):
            model = f"{alert}-{fires}"
            bad = (share, 0.0) if alert == "FlambeauErrorBudgetBurn" else (0.0, share)
            series |= traffic(*bad, minute // step_m + 10, model)
            looks.append(expected(minute, alert, fires, window=window, model=model))
    return case(series, *looks, step_m=step_m)


def evaluate(
    folder: Path, cases: list[dict[str, Any]], step_m: int = 1, groups: Any = None
) -> None:
    rules = {"groups": rule_groups({}) if groups is None else groups}
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules, width=1000))
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{step_m}m",
        # Otherwise promtool takes any order, and what was recorded a long step ago has expired.
        "group_eval_order": [group["name"] for group in rules["groups"]],
        "tests": cases,
    }
    (folder / "tests.yaml").write_text(yaml.safe_dump(document, width=1000))
    run_tool("promtool", "test", "rules", "tests.yaml", cwd=folder)


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]
    assert all(list(by) == [burn.long for burn in BURNS] for by in SHARES.values())


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    cases = [
        case(series, expected(minute, alert, fires))
        for alert, (minute, *both) in CASES.items()
        for series, fires in zip(both, (True, False), strict=True)
    ]
    evaluate(tmp_path, cases, groups=rule_groups({})[-1:])


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
    assert len(increasing) == 8


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
    evaluate(tmp_path, cases, groups=rule_groups({})[-1:])


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
    """As are models whose names would mean something else in a regular expression."""
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
    evaluate(tmp_path, [case(series, *looks, step_m=2)], 2, rule_groups(objectives))


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    rules = [rule for group in rule_groups({}) for rule in group["rules"] if "alert" in rule]
    named = {rule["annotations"]["runbook_url"] for rule in rules}
    assert named == {str(path.relative_to(ROOT)) for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert named == {runbook(rule["alert"]) for rule in rules}
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "ticket"}
    for path in named:
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        assert headings == [Path(path).stem, "What it means", "Look at", "Do"]


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
