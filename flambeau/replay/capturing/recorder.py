"""Writes exchanges to a capture, from a thread of its own, within limits.

When a limit or an error ends the recording, what is passed on goes on.
"""

import contextlib
import os
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flambeau.replay.capturing.exchange import Exchange, line_pieces
from flambeau.replay.errors import RequestFileError

MAX_HELD_BYTES = 256 * 2**20
"""Exchanges that arrive or wait to be written; those that have no room are left out."""
LEFT_OUT_LARGE, LEFT_OUT_BUSY, LEFT_OUT_SAMPLE = "too large", "no room", "not sampled"
LEFT_OUT_UNREAD, LEFT_OUT_CUT, LEFT_OUT_PATH = "not HTTP/1", "cut off", "not a path"
LEFT_OUT_STATUS = "no status of HTTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingLimits:
    """Limits of a recording, and its choice of requests and parts.

    Attributes:
        sample: share of the requests, 1 for all.
        max_requests: requests after which the recording ends.
        max_body_bytes: largest body of a request or answer.
        max_file_bytes: size of the file before which the recording ends.
        answers: True to record answers, too.
        credentials: True to record credentials, too.
    """

    sample: float = 1.0
    max_requests: int = 1_000_000
    max_body_bytes: int
    max_file_bytes: int
    answers: bool = False
    credentials: bool = False


class Recorder:
    """Records to a file, which is made readable to its owner only, or appended to.

    Args:
        path: the file.
        limits: what is recorded.
        tell: receives the reason, from any thread, when the recording ends before the proxy.

    Attributes:
        left_out: number of requests that are not recorded, by reason.
        recorded: number of requests that are written.
        ended: why the recording has ended; empty while it goes on.

    Raises:
        RequestFileError: the file cannot be written.
    """

    def __init__(
        self, path: Path, limits: RecordingLimits, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.limits = limits
        self._tell = tell
        self.left_out: Counter[str] = Counter()
        self.recorded = 0
        self.ended = ""
        self._chosen = 0
        self._reserved_bytes = self._written_bytes = 0  # the second by the thread only
        self._waiting: queue.SimpleQueue[Exchange | None] = queue.SimpleQueue()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._file).st_size
            if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
                self._append(b"\n")  # an earlier capture was killed
        except OSError as error:
            raise RequestFileError(f"'{path}' cannot be written: {error}; see --out") from error
        self._thread = threading.Thread(target=self._write_all, name="capture")
        self._thread.start()

    def chooses(self) -> bool:
        """Returns True if the next request is recorded; it is then taken or dropped later."""
        limits = self.limits
        if self._chosen >= limits.max_requests and not self.ended:
            self._end(f"{limits.max_requests} requests are recorded (--max-requests)")
        if self.ended:
            return False
        if limits.sample < 1 and random.random() >= limits.sample:  # noqa: S311
            self.left_out[LEFT_OUT_SAMPLE] += 1
            return False
        self._chosen += 1
        return True

    @property
    def held_bytes(self) -> int:
        """Bytes of exchanges that arrive or wait to be written."""
        return self._reserved_bytes - self._written_bytes

    def reserve(self, exchange: Exchange, size: int) -> bool:
        """Makes room for further bytes of an exchange. Returns False if there is none."""
        if self.held_bytes + size > MAX_HELD_BYTES:
            return False
        self._reserved_bytes += size
        exchange.reserved_bytes += size
        return True

    def take(self, exchange: Exchange) -> None:
        """Writes a whole exchange, later."""
        self._waiting.put(exchange)

    def drop(self, exchange: Exchange, reason: str) -> None:
        """Leaves out an exchange that was chosen."""
        self._chosen -= 1
        self.left_out[reason] += 1
        self._reserved_bytes -= exchange.reserved_bytes

    def close(self) -> None:
        """Writes what waits, and closes the file."""
        self._waiting.put(None)
        self._thread.join()
        os.close(self._file)

    def _write_all(self) -> None:
        is_full = False
        while (exchange := self._waiting.get()) is not None:
            is_full = is_full or not self._write(exchange)
            self._written_bytes += exchange.reserved_bytes

    def _write(self, exchange: Exchange) -> bool:
        """Writes an exchange whole, or not at all. Returns False if nothing more can be written."""
        limits, before = self.limits, self._size
        try:
            for piece in line_pieces(
                exchange, answers=limits.answers, credentials=limits.credentials
            ):
                if self._size + len(piece) > limits.max_file_bytes:
                    raise OSError(f"it has reached {limits.max_file_bytes} bytes (--max-file-mb)")
                self._append(piece)
        except OSError as error:
            self._end(f"no more can be written to the file: {error}")
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            return False
        self.recorded += 1
        return True

    def _end(self, reason: str) -> None:
        self.ended = reason
        self._tell(reason)

    def _append(self, piece: bytes) -> None:
        while piece:
            written = os.write(self._file, piece)
            self._size += written
            piece = piece[written:]
