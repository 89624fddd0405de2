"""Waits between attempts: as long as the server says, with jitter, within deadline and limit."""

import pytest

from flambeau.calling.attempts import JITTER, MAX_RETRIES, Attempts, check_retries
from flambeau.errors import OverloadedError


def refusal(retry_after_s: float | None) -> OverloadedError:
    error = OverloadedError("the queue is full")
    error.retry_after_s = retry_after_s
    return error


def test_waits_are_those_of_the_server_with_jitter() -> None:
    attempts = Attempts(1e6, 100)
    waits = [attempts.wait_s(refusal(2.0)) for _ in range(100)]
    assert min(waits) >= 2
    assert max(waits) <= 2 * (1 + JITTER)
    assert max(waits) - min(waits) > 0.5 * 2 * JITTER


def test_retries_are_limited() -> None:
    attempts = Attempts(1e6, 2)
    for _ in range(2):
        attempts.wait_s(refusal(0.0))
    last = refusal(0.0)
    with pytest.raises(OverloadedError) as caught:
        attempts.wait_s(last)
    assert caught.value is last


@pytest.mark.parametrize("retry_after_s", [None, 5.0, 1e9])
def test_a_refusal_without_a_delay_or_beyond_the_deadline_is_final(
    retry_after_s: float | None,
) -> None:
    with pytest.raises(OverloadedError):
        Attempts(5, 3).wait_s(refusal(retry_after_s))


def test_attempts_share_one_deadline() -> None:
    attempts = Attempts(1e-9, 3)
    assert attempts.timeout_s == 1e-9
    assert attempts.remaining_s == 0


@pytest.mark.parametrize("retries", [-1, MAX_RETRIES + 1])
def test_a_number_of_retries_has_limits(retries: int) -> None:
    with pytest.raises(ValueError, match=f"retries is {retries}; give 0 to {MAX_RETRIES}"):
        check_retries(retries)
