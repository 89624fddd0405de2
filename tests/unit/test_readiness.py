"""Readiness of a process, by each rule of the setting `readiness`."""

import logging

import pytest

from services.readiness import MAX_REASON_CHARACTERS, MAX_REASONS, Look, Readiness, ReadinessRule

GOOD = Look(served=2)
REFUSED = Look(served=1, refused={"b": "version 2 (production) was refused: out of tolerance"})
NOTHING = Look(served=0, refused={"b": "refused"})
MISSING = Look(served=1, missing={"digitz": "the store has no such model"})
FOREIGN = Look(fault="the store looks like a Triton model repository")
EMPTY = Look()
LOADING = Look(started=False, served=1, loading=("slow",))


@pytest.mark.parametrize(
    ("rule", "looks", "ready"),
    [
        ("all_models_once", [GOOD], True),
        ("all_models_once", [EMPTY], True),
        ("all_models_once", [REFUSED], False),
        ("all_models_once", [MISSING], False),
        ("all_models_once", [FOREIGN], False),
        ("all_models_once", [REFUSED, GOOD], True),
        ("all_models_once", [GOOD, REFUSED], True),
        ("all_models_once", [GOOD, NOTHING], True),
        ("all_models_once", [GOOD, MISSING], False),
        ("all_models", [GOOD], True),
        ("all_models", [GOOD, REFUSED], False),
        ("all_models", [GOOD, REFUSED, GOOD], True),
        ("any_model", [REFUSED], True),
        ("any_model", [NOTHING], False),
        ("any_model", [GOOD, NOTHING], False),
        ("any_model", [EMPTY], True),
        ("any_model", [FOREIGN], False),
        ("any_model", [LOADING], True),
        ("any_model", [Look(started=False, loading=("slow",))], False),
        ("all_models_once", [LOADING], False),
    ],
)
def test_what_is_ready_by_each_rule(rule: ReadinessRule, looks: list[Look], ready: bool) -> None:
    readiness = Readiness(rule)
    assert not readiness.is_ready
    for look in looks:
        readiness.see(look)
    assert readiness.is_ready is ready


@pytest.mark.parametrize("rule", ["all_models_once", "all_models", "any_model"])
def test_a_process_that_serves_from_the_cache_is_ready_and_says_so(
    rule: ReadinessRule, caplog: pytest.LogCaptureFixture
) -> None:
    readiness = Readiness(rule)
    caplog.set_level(logging.INFO)
    readiness.see(Look(served=1, notice="serving from the cache"))
    assert readiness.is_ready
    assert readiness.why() == readiness.summary() == "serving from the cache"
    readiness.see(Look(served=1))
    assert readiness.why() == ""
    assert [record.message for record in caplog.records] == ["ready, from the cache", "ready"]


@pytest.mark.parametrize("rule", ["all_models_once", "all_models", "any_model"])
def test_nothing_is_ready_before_it_has_started_and_the_store_s_fault_is_told(
    rule: ReadinessRule,
) -> None:
    readiness = Readiness(rule)
    assert "starting" in readiness.why()
    readiness.see(Look(started=False, loading=("a", "b")))
    assert readiness.why() == "starting: loading 'a', 'b'"
    readiness.see(Look(started=False, fault="the bucket does not answer"))
    assert not readiness.is_ready
    assert readiness.why() == "the bucket does not answer"


def test_what_a_process_waits_for_is_told_at_once_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flambeau.server")
    readiness = Readiness()
    for look in (Look(started=False), Look(started=False, awaits="no worker"), GOOD):
        readiness.see(look)
        if look.awaits:
            readiness.see(look)
            assert readiness.why() == readiness.summary() == "no worker"
    readiness.see(Look(started=False, awaits="no worker", fault="no Redis"))
    assert readiness.why() == "no Redis"
    assert [record.message for record in caplog.records] == [
        "not ready yet",
        "ready",
        "not ready yet",
    ]


def test_the_reasons_name_models_and_the_summary_does_not() -> None:
    readiness = Readiness()
    readiness.see(REFUSED)
    assert readiness.why() == ("model 'b': version 2 (production) was refused: out of tolerance")
    assert readiness.summary().startswith("1 model cannot be served")
    readiness.see(GOOD)
    assert (readiness.why(), readiness.summary()) == ("", "")


def test_reasons_have_a_limit() -> None:
    readiness = Readiness()
    readiness.see(Look(refused={f"m{i:03}": "x" * 10_000 for i in range(100)}))
    assert len(readiness.why()) < (MAX_REASONS + 1) * (MAX_REASON_CHARACTERS + 10)
    assert readiness.why().endswith("; and 90 more models")


def test_a_change_is_logged_once_with_where_the_process_listens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    readiness = Readiness()
    with caplog.at_level(logging.INFO, "flambeau.server"):
        for look in (Look(started=False), REFUSED, REFUSED, GOOD, GOOD, REFUSED, REFUSED):
            readiness.see(look, {"metrics_port": 8002})
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "not ready"),
        ("INFO", "ready"),
        ("WARNING", "ready, but not for every model"),
    ]
    assert all(record.__dict__["metrics_port"] == 8002 for record in caplog.records)
    assert "out of tolerance" in caplog.records[0].__dict__["reason"]
