"""Runs a server for `make`: both end together, with the server's exit code.

In: a command. Out: its exit code, or 128 + the number of the signal that ended it, by shell
convention. Run by its path: it imports no project modules.

Rules: the command is the terminal's foreground job, so that Ctrl-C reaches it and not make, which
would fail; SIGTERM, SIGINT and SIGHUP, which make forwards to this process, are forwarded to the
command; Ctrl-Z stops make too, and the shell continues both.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(command: Sequence[str]) -> int:
    """Runs the command until it exits. Returns the exit code."""
    terminal = _terminal()
    asked: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        asked.append(number)
        if process is not None and process.returncode is None:
            os.kill(process.pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    process = subprocess.Popen(command, process_group=0)  # noqa: S603
    _give(terminal, process.pid)
    for missed in tuple(asked):  # signals received before the process existed
        os.kill(process.pid, missed)
    try:
        return _await_end(process, terminal)
    finally:
        _give(terminal, os.getpgrp())


def _await_end(process: "subprocess.Popen[bytes]", terminal: int | None) -> int:
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode if process.returncode >= 0 else 128 - process.returncode
        _give(terminal, os.getpgrp())
        os.killpg(0, signal.SIGSTOP)  # until the shell continues make
        _give(terminal, process.pid)
        os.killpg(process.pid, signal.SIGCONT)


def _terminal() -> int | None:
    """Returns the descriptor of the controlling terminal if this process is in its foreground."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/dev/tty", os.O_RDWR)
        if os.tcgetpgrp(descriptor) == os.getpgrp():
            return descriptor
        os.close(descriptor)
    return None


def _give(terminal: int | None, group: int) -> None:
    """Makes a process group the terminal's foreground job."""
    if terminal is None:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # sent to a background caller
    with contextlib.suppress(OSError):  # the terminal has closed
        os.tcsetpgrp(terminal, group)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
