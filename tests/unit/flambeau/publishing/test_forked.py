"""Calls in a forked child."""

import os
import signal
import threading

import pytest

from flambeau.publishing.forked import ForkedCallError, ForkUnavailableError, call_in_fork


def test_the_result_comes_back_from_another_process() -> None:
    assert call_in_fork(os.getpid) != os.getpid()


def test_large_results_come_back() -> None:
    assert len(call_in_fork(lambda: "x" * 5_000_000)) == 5_000_000


def test_an_exception_is_told_by_its_innermost_line() -> None:
    def fail() -> None:
        try:
            raise KeyError("inner\nmore")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ForkedCallError, match=r"^KeyError: 'inner"):
        call_in_fork(fail)


def test_a_child_that_crashes_is_told_and_its_call_is_not_repeated_here() -> None:
    with pytest.raises(ForkedCallError, match="its process was ended by SIGKILL"):
        call_in_fork(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_deadlocked_child_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flambeau.publishing.forked.STUCK_S", 1.0)
    lock = threading.Lock()
    lock.acquire()

    with pytest.raises(ForkUnavailableError):
        call_in_fork(lock.acquire)
