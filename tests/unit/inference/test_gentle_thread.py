"""A function at lower priority: its result, its error, and the caller's own priority."""

import os
import sys
import threading

import pytest

from services.inference.gentle_thread import NICENESS, run_gently

if sys.platform != "linux":
    pytest.skip("a thread has a priority of its own on Linux only", allow_module_level=True)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_the_work_is_nicer_than_its_caller_who_stays_as_he_was() -> None:
    before = niceness()
    assert run_gently(niceness) == min(before + NICENESS, 19)
    assert niceness() == before


def test_an_error_is_the_caller_s() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_gently(fail)
