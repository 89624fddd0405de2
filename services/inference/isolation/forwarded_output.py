"""The standard output of a worker process, forwarded to the error output of the server.

In: what a model prints. Out: the same, but for the rest of lines that are too long.

Rules: nothing is kept, so an endless line takes no memory; what is cut is marked in the line, and
logged once a process; a model never waits for longer than the error output takes.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

logger = logging.getLogger("flambeau.isolation")

MAX_LINE_BYTES = 64 * 1024
"""Bytes of a line that are forwarded; the rest is dropped."""
CUT = b" [cut]\n"
_PIECE_BYTES = MAX_LINE_BYTES
_ERROR_OUTPUT = 2


@contextlib.contextmanager
def forwarded_output(name: str, target: int = _ERROR_OUTPUT) -> Iterator[int]:
    """Yields the descriptor for the output of a process that is started in the block.

    Args:
        name: name of the process, for the log.
        target: descriptor that the output goes to.
    """
    source, sink = os.pipe()
    reader = threading.Thread(
        target=_forward, args=(source, target, name), name=f"output of {name}", daemon=True
    )
    try:
        reader.start()
        yield sink
    finally:
        os.close(sink)


def _forward(source: int, target: int, name: str) -> None:
    """Forwards until all writers have closed the pipe."""
    lines = LineLimit()
    has_told = False
    with open(source, "rb", buffering=0) as output:
        while piece := output.read(_PIECE_BYTES):
            with contextlib.suppress(OSError):  # such as of a closed terminal
                _write(target, lines.limited(piece))
            if lines.cuts and not has_told:
                has_told = True
                logger.warning(
                    "a line that a model printed was cut",
                    extra={"program": name, "limit_bytes": MAX_LINE_BYTES},
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
