"""The standard error of a server, written to without waiting for its reader.

In: lines of the log. Out: the same, in order; a note in place of those that were dropped.

Rules: who logs never waits, since that may be the event loop; what a pipe or a terminal does not
take at once is written by a thread; lines beyond `MAX_WAITING_BYTES` are dropped and counted.
"""

import contextlib
import json
import logging
import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MAX_WAITING_BYTES = 2**20
"""Lines that wait for the reader."""
LAST_LINES_S = 1.0
"""Time that the lines that wait have when the process exits."""


THREAD = "log"
"""Name of the thread."""


class LogOutput:
    """A stream for `LogHandler`.

    Args:
        stream: where the lines go; it has a descriptor.

    Raises:
        OSError: it has none, or none that can be opened a second time.
    """

    def __init__(self, stream: TextIO) -> None:
        self._target = stream.fileno()
        self._write_at_once = _writer_at_once(self._target)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._dropped = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Writes some lines, or leaves them to the thread."""
        data, written = text.encode("utf-8", "backslashreplace"), 0
        with self._changed:
            if not self._waiting:
                written = self._written(data)
                data = data[written:]
            if not data:
                return
            if not written and self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._dropped += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain, name=THREAD, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing is kept that the reader would take."""

    def finish(self) -> None:
        """Waits for the lines that wait, but not long: the process exits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, LAST_LINES_S)

    def _written(self, data: bytes) -> int:
        """Returns the number of bytes that are taken at once."""
        try:
            return self._write_at_once(data)
        except BlockingIOError:
            return 0
        except OSError:  # nobody reads it any more
            return len(data)

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            with contextlib.suppress(OSError):  # nobody reads it any more
                self._write_in_time(data)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                if not self._waiting and self._dropped:
                    note = {"level": "warning", "logger": "flambeau.log",
                            "message": "log lines were dropped: nobody read them in time",
                            "lines": self._dropped}  # fmt: skip
                    self._dropped = 0
                    self._waiting.append(json.dumps(note).encode() + b"\n")
                    self._waiting_bytes += len(self._waiting[0])
                self._changed.notify_all()

    def _write_in_time(self, data: bytes) -> None:
        rest, ready = memoryview(data), select.poll()
        ready.register(self._target, select.POLLOUT)
        while rest:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:  # whoever shares the descriptor has set it so
                ready.poll()


class LogHandler(logging.StreamHandler[LogOutput]):
    """Writes log lines to a `LogOutput`; at its end it waits for those that wait, but not long."""

    def close(self) -> None:
        """Waits for the lines that wait; see `LogOutput.finish`."""
        self.stream.finish()
        super().close()


def _writer_at_once(target: int) -> Callable[[bytes], int]:
    """Returns a function that writes what is taken at once, and returns the number of bytes.

    Others may share the descriptor, and must not see it change to one that does not wait. So a pipe
    or a terminal is opened a second time.
    """
    if stat.S_ISSOCK(os.fstat(target).st_mode):
        end = socket.socket(fileno=os.dup(target))
        return lambda data: end.send(data, socket.MSG_DONTWAIT)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_CLOEXEC
    second = os.open(f"/proc/self/fd/{target}", flags)
    return lambda data: os.write(second, data)


def may_wait(stream: TextIO) -> bool:
    """Returns True if writing to a stream may wait for a reader: a pipe, a terminal, a socket."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # it is none of the system's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)
