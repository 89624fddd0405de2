"""The standard error of a server, written to without waiting for its reader.

In: lines of the log. Out: the same, in order; a note in place of those that were dropped.

Rules: who logs never waits, since that may be the event loop; what a pipe or a terminal does not
take at once is written by a thread; lines beyond `MAX_WAITING_BYTES` are dropped and counted.
"""

import contextlib
import json
import os
import stat
import threading
from collections import deque
from typing import TextIO

MAX_WAITING_BYTES = 2**20
"""Lines that wait for the reader."""
LAST_LINES_S = 1.0
"""Time that the lines that wait have when the process exits."""


class LogOutput:
    """A stream for `logging.StreamHandler`.

    Args:
        stream: where the lines go; it has a descriptor.

    Raises:
        OSError: it has none, or none that can be opened a second time.
    """

    def __init__(self, stream: TextIO) -> None:
        self._target = stream.fileno()
        # A second description of the same pipe or terminal: others may share the first one, and
        # must not see it change to one that does not wait.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_CLOEXEC
        self._at_once = os.open(f"/proc/self/fd/{self._target}", flags)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._dropped = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Writes some lines, or leaves them to the thread."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if not self._waiting:
                data = data[self._written(data) :]
            if not data:
                return
            if self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._dropped += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain, name="log", daemon=True)
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
            return os.write(self._at_once, data)
        except BlockingIOError:
            return 0
        except OSError:  # nobody reads it any more
            return len(data)

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            with contextlib.suppress(OSError):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._target, rest) :]
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


def may_wait(stream: TextIO) -> bool:
    """Returns True if writing to a stream may wait for a reader: it is a pipe or a terminal."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # it is none of the system's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
