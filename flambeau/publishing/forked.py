"""Calls a function in a forked child, so that the caller's process keeps its memory and state.

Exporting a network imports a hundred megabytes of torch's compiler; in a child they are gone
afterwards. The child shares the caller's memory, so nothing is copied on the way in.

Rules: a fork of a process with threads may deadlock. A child that uses no CPU time for `STUCK_S`
seconds is ended, and the caller makes the call itself. Beside gRPC's threads nothing is to be
forked (`fork_hazard`): gRPC's handlers of forks break connections of the caller's process, and
crash some children. A child that a signal ends has crashed: the call would end the caller's process
too, so it is not made there.
"""

import contextlib
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

GRPC_THREAD = "grpc_global_tim"
"""Name of a thread that gRPC has as long as something of it is in use, as Linux shortens it."""
STUCK_S = 20.0
"""Seconds without CPU time after which a child counts as deadlocked; exporting never waits."""
_LOOK_EVERY_S = 0.5
_CHUNK_BYTES = 2**16


class ForkedCallError(Exception):
    """The call raised, with type and first line of the innermost exception; or it crashed."""


class ForkUnavailableError(Exception):
    """There is no fork here, or the child got stuck; the caller may do its work."""


def call_in_fork(call: Callable[[], Result]) -> Result:
    """Returns the result of the call, made in a child.

    Args:
        call: a function; its result, of values of JSON, is sent back. It must not use a GPU that
            this process has used.

    Raises:
        ForkedCallError: the call raised or crashed; the exception itself would import modules here.
        ForkUnavailableError: the system has no fork, or the child got stuck.
    """
    if not hasattr(os, "fork"):
        raise ForkUnavailableError("this system has no fork")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(call, writer)
    os.close(writer)
    data: bytes | None = None
    try:
        data = _read(reader, child)
    finally:
        os.close(reader)
        if data is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not data:
        if data is not None and os.WIFSIGNALED(status):
            how = signal.Signals(os.WTERMSIG(status)).name
            raise ForkedCallError(f"its process was ended by {how}")
        what = f"used no CPU time for {STUCK_S:g} s" if data is None else "ended without an answer"
        raise ForkUnavailableError(f"the child {what}")
    succeeded, found = json.loads(data)
    if not succeeded:
        raise ForkedCallError(found)
    return found  # type: ignore[no-any-return]


def fork_hazard() -> str:
    """Returns why this process should not be forked; empty if nothing is known."""
    for name in list(Path("/proc/self/task").glob("*/comm")):  # all, or it stays open
        with contextlib.suppress(OSError):  # the thread has ended
            if name.read_text().strip() == GRPC_THREAD:
                return "gRPC is in use here"
    return ""


def _answer(call: Callable[[], Any], writer: int) -> None:
    """Runs in the child, and ends it without the handlers and buffers of the caller's process."""
    try:
        sys.settrace(None)  # a debugger's breakpoints belong to the caller's process
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller gets Ctrl-C, and ends the child
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            answer: tuple[bool, Any] = (True, call())
        except Exception as error:
            answer = (False, innermost_line(error))
        with os.fdopen(writer, "w") as file:
            json.dump(answer, file)
    finally:
        os._exit(0)


def innermost_line(error: BaseException) -> str:
    """Returns type and first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _read(reader: int, child: int) -> bytes | None:
    """Returns what the child writes until it closes the pipe; None if it is stuck."""
    parts: list[bytes] = []
    quiet_s, used = 0.0, _cpu_ticks(child)
    while True:
        if select.select([reader], [], [], _LOOK_EVERY_S)[0]:
            part = os.read(reader, _CHUNK_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
            continue
        now = _cpu_ticks(child)
        quiet_s = quiet_s + _LOOK_EVERY_S if now == used else 0.0
        used = now
        if quiet_s >= STUCK_S:
            return None


def _cpu_ticks(process: int) -> int:
    """Returns the CPU time of a process in clock ticks; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
