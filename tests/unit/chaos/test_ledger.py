"""Tests of the checker: it must find planted errors."""

import pytest

from tests.chaos.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.asked("a", 2.0)
    return ledger


def test_one_right_answer_breaks_nothing(ledger: Ledger) -> None:
    ledger.answered("a", 2.0)
    assert ledger.broken() == []
    assert dict(ledger.counts()) == {"answered": 1}


def test_a_named_error_breaks_nothing(ledger: Ledger) -> None:
    ledger.refused("a", 503, "the queue is unreachable (it hangs); retry later")
    assert ledger.broken() == []
    assert dict(ledger.counts()) == {"503": 1}


def test_a_lost_answer_is_found(ledger: Ledger) -> None:
    assert ledger.broken() == ["'a': lost: nothing came back"]


def test_a_second_answer_is_found(ledger: Ledger) -> None:
    ledger.answered("a", 2.0)
    ledger.answered("a", 2.0)
    assert ledger.broken() == ["'a': answered 2 times"]


def test_an_error_after_an_answer_is_found(ledger: Ledger) -> None:
    ledger.answered("a", 2.0)
    ledger.refused("a", 504, "request 'a' reached its deadline")
    assert ledger.broken() == ["'a': answered 2 times"]


def test_a_wrong_answer_is_found(ledger: Ledger) -> None:
    ledger.answered("a", 3.0)
    assert ledger.broken() == ["'a': wrong: 3 instead of 2.0"]


def test_an_answer_nobody_asked_for_is_found(ledger: Ledger) -> None:
    ledger.answered("a", 2.0)
    ledger.answered("b", 2.0)
    assert ledger.broken() == ["'b': an answer nobody asked for"]


@pytest.mark.parametrize("status", [400, 500, 502, 503])
def test_an_error_without_a_name_is_found(ledger: Ledger, status: int) -> None:
    ledger.refused("a", status, "Traceback")
    assert ledger.broken() == [f"'a': an error without a name: {status} Traceback"]


def test_a_connection_that_ends_for_no_reason_is_found(ledger: Ledger) -> None:
    ledger.cut_off("a", gateway_killed=False)
    assert ledger.broken() == ["'a': cut off by a gateway nobody had killed"]


def test_a_connection_that_ends_with_its_gateway_breaks_nothing(ledger: Ledger) -> None:
    ledger.cut_off("a", gateway_killed=True)
    assert ledger.broken() == []
