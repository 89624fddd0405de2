"""The standard output of a worker process, forwarded to the error output of the server.

In: what a model prints. Out: the same, but for the rest of lines that are too long.

Rules: nothing is kept, so an endless line takes no memory; what is cut is marked in the line, and
logged once a process; a model never waits for longer than the error output takes; what the process
has started, and left behind in a session of its own, is not listened to for ever.
"""

import contextlib
import io
import logging
import math
import os
import select
import threading
import time
from types import TracebackType
from typing import Self

logger = logging.getLogger("flambeau.isolation")

MAX_LINE_BYTES = 64 * 1024
"""Bytes of a line that are forwarded; the rest is dropped."""
CUT = b" [cut]\n"
LAST_OUTPUT_S = 1.0
"""Time to forward what a process that has ended left in its pipe."""
_PIECE_BYTES = MAX_LINE_BYTES
_ERROR_OUTPUT = 2


class ForwardedOutput:
    """The output of one process, which is started in a `with` block.

    Args:
        name: name of the process, for the log.
        target: descriptor that the output goes to.

    Attributes:
        sink: descriptor for the output of the process; the block closes this one of it.
    """

    def __init__(self, name: str, target: int = _ERROR_OUTPUT) -> None:
        self._name, self._target = name, target
        self._source, self.sink = os.pipe()
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock, self._is_over = threading.Lock(), False
        self._thread = threading.Thread(target=self._forward, name=f"output of {name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self.sink)
        if error is not None:
            self.end()

    def end(self) -> None:
        """Forwards what is left, and stops: the process has ended."""
        with self._lock:
            if not self._is_over:
                os.eventfd_write(self._ended, 1)

    def _forward(self) -> None:
        """Forwards until all writers have closed the pipe, or the process has ended."""
        try:
            with open(self._source, "rb", buffering=0) as output:
                self._forward_from(output)
        finally:
            with self._lock:
                self._is_over = True
                os.close(self._ended)

    def _forward_from(self, output: io.FileIO) -> None:
        lines, has_told, give_up_at = LineLimit(), False, math.inf
        ready = select.poll()
        ready.register(output, select.POLLIN)
        ready.register(self._ended, select.POLLIN)
        while (left_s := give_up_at - time.monotonic()) > 0:
            found = dict(ready.poll(None if left_s == math.inf else left_s * 1000))
            if self._ended in found:
                ready.unregister(self._ended)
                give_up_at = time.monotonic() + LAST_OUTPUT_S
            if output.fileno() not in found:
                continue
            if not (piece := output.read(_PIECE_BYTES)):
                return
            with contextlib.suppress(OSError):  # such as of a closed terminal
                _write(self._target, lines.limited(piece))
            if lines.cuts and not has_told:
                has_told = True
                logger.warning(
                    "a line that a model printed was cut",
                    extra={"program": self._name, "limit_bytes": MAX_LINE_BYTES},
                )


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


class LineLimit:
    """Cuts lines that are too long.

    Attributes:
        cuts: number of lines that were cut.
    """

    def __init__(self) -> None:
        self._length, self._is_cut = 0, False
        self.cuts = 0

    def limited(self, piece: bytes) -> bytes:
        """Returns a piece of output, without what is beyond the limit of a line.

        Only the first line can be too long: a loop over short ones would hold the interpreter lock.

        Args:
            piece: at most `MAX_LINE_BYTES`.
        """
        text, newline, rest = piece.partition(b"\n")
        first, room = text + newline, MAX_LINE_BYTES - self._length
        if self._is_cut:
            first = b""
        elif len(first) > room:
            first, self._is_cut = first[:room] + CUT, True
            self.cuts += 1
        if newline:
            self._length, self._is_cut = len(rest) - rest.rfind(b"\n") - 1, False
        else:
            self._length += len(piece)
        return first + rest
