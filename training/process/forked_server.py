"""Makes multiprocessing's server of processes a fork of this process, not a new interpreter.

A fork has what this process has imported: importing torch once more would take a second of CPU time
and two hundred megabytes.

Rule: a process that has used torch's threads cannot be forked. So the fork is made before they are
used, and waits until the server is wanted; it ends with this process.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker, util
from typing import Any, NoReturn

COMMAND_BYTES = 2**16
COMMAND_DESCRIPTORS = 8


class ServerFork:
    """A fork of this process that waits to become the server of processes."""

    def __init__(self) -> None:
        self._maker = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._waits: int | None = ours.detach()  # open as long as this process
        with theirs, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._waits)
                _await_command(theirs)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Has multiprocessing use the fork where it would start an interpreter, in the block."""
        resource_tracker.ensure_running()  # an interpreter, too
        before = util.spawnv_passfds

        def spawn(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
            del path  # of the interpreter
            message = json.dumps([args[-1], list(passfds)]).encode()
            with socket.socket(fileno=self._waits) as ours:
                self._waits = None
                socket.send_fds(ours, [message], passfds)
            return self._pid

        if self._maker == os.getpid() and self._waits is not None:
            util.spawnv_passfds = spawn
        try:
            yield
        finally:
            util.spawnv_passfds = before


def _await_command(messages: socket.socket) -> NoReturn:
    """Runs in the fork: awaits the program that an interpreter would run, and runs it."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        message, received, *_ = socket.recv_fds(messages, COMMAND_BYTES, COMMAND_DESCRIPTORS)
        if message:
            program, numbers = json.loads(message)
            messages.detach()  # its number may be wanted
            apart = [fcntl.fcntl(one, fcntl.F_DUPFD, max(numbers) + 1) for one in received]
            for one, number in zip(apart, numbers, strict=True):
                os.dup2(one, number)
            exec(program, {})  # noqa: S102 - multiprocessing's own text
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
