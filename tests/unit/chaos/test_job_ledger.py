"""Tests of the jobs' checker: it must find planted errors."""

from typing import Any

import pytest

from tests.chaos.job_ledger import JobLedger


def _over(value: float = 2.0, finished_at: str = "10:00") -> dict[str, Any]:
    return {
        "state": "done",
        "finished_at": finished_at,
        "result": {"outputs": [{"data": [value]}]},
    }


@pytest.fixture
def ledger() -> JobLedger:
    ledger = JobLedger()
    ledger.submitted("k", 2.0)
    ledger.accepted("k", "a")
    return ledger


def test_one_right_result_breaks_nothing(ledger: JobLedger) -> None:
    ledger.announced("a")
    ledger.ended("k", _over())
    ledger.ended("k", _over())
    assert ledger.broken() == []
    assert dict(ledger.counts()) == {"done": 1}


def test_a_job_that_was_never_taken_in_breaks_nothing() -> None:
    ledger = JobLedger()
    ledger.submitted("k", 2.0)
    assert ledger.broken() == []
    assert dict(ledger.counts()) == {"refused": 1}


def test_a_lost_job_is_found(ledger: JobLedger) -> None:
    assert ledger.broken() == ["job 'k': lost: it was taken in, and is not over"]


def test_a_key_that_makes_two_jobs_is_found(ledger: JobLedger) -> None:
    ledger.accepted("k", "b")
    ledger.ended("k", _over())
    assert ledger.broken() == ["job 'k': taken in 2 times with one idempotency key"]


def test_a_result_that_is_replaced_is_found(ledger: JobLedger) -> None:
    ledger.ended("k", _over())
    ledger.ended("k", _over(finished_at="10:01"))
    assert ledger.broken() == ["job 'k': published twice: it was over, and read differently later"]


def test_a_result_that_is_announced_twice_is_found(ledger: JobLedger) -> None:
    ledger.ended("k", _over())
    ledger.announced("a")
    ledger.announced("a")
    assert ledger.broken() == ["job 'k': published 2 times"]


def test_a_wrong_result_is_found(ledger: JobLedger) -> None:
    ledger.ended("k", _over(3.0))
    assert ledger.broken() == ["job 'k': wrong: 3 instead of 2.0"]


def test_a_job_that_fails_for_no_reason_is_found(ledger: JobLedger) -> None:
    ledger.ended("k", {"state": "failed", "error": "Traceback"})
    assert ledger.broken() == ["job 'k': ended as failed: Traceback"]


def test_a_job_that_ended_two_workers_breaks_nothing(ledger: JobLedger) -> None:
    ledger.ended("k", {"state": "failed", "error": "it is among the dead letters of 'm'"})
    assert ledger.broken() == []


def test_what_redis_forgot_breaks_nothing(ledger: JobLedger) -> None:
    ledger.forgotten("k")
    assert ledger.broken() == []
    assert dict(ledger.counts()) == {"forgotten": 1}
