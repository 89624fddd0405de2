"""What a server process asks of the kernel."""

import ctypes
import errno
import platform
import struct
import sys
import threading
from collections.abc import Callable

import pytest

from services.process import TURN_NS, take_short_turns

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


def in_thread(ask: Callable[[], int]) -> int:
    """What a thread of its own finds; nobody else's turns are to change."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    thread.join()
    return found[0]


def turn_ns() -> int:
    """Length of the calling thread's turns; 0 where the kernel does not tell."""
    answer = ctypes.create_string_buffer(48)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SCHED_GETATTR[platform.machine()], 0, answer, len(answer), 0):
        raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])
    return int(struct.unpack_from("=Q", answer, 24)[0])


def test_an_event_loop_has_short_turns_and_threads_started_later_have_not() -> None:
    if sys.platform != "linux" or platform.machine() not in SCHED_GETATTR:
        pytest.skip("no sched_getattr on this system")
    usual = in_thread(turn_ns)
    if not usual:
        pytest.skip("turns have no length in this kernel: before Linux 6.12")

    def short() -> int:
        take_short_turns()
        return turn_ns()

    def started_later() -> int:
        take_short_turns()
        return in_thread(turn_ns)

    assert in_thread(short) == TURN_NS
    assert in_thread(started_later) == usual


def test_a_machine_without_such_turns_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    take_short_turns()
