"""Forms batches out of waiting entries. Pure: no clock, no I/O, no threads.

In: entries as a worker took them, oldest first. Out: batches of compatible entries.

Rules kept here:
- the oldest live entry is always in the next batch, so nothing starves;
- only entries whose inputs agree in everything but the number of rows share a batch;
- a batch keeps arrival order and never exceeds `max_rows`;
- dead entries (answered, cancelled, out of time) never reach a batch.
"""

from collections import deque
from collections.abc import Iterable

from services.queueing.memory_queue import Entry

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class Batcher:
    """The entries one worker has taken and not yet run.

    Args:
        max_rows: the most rows of a batch; every single entry fits (the gateway checked it).
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._waiting: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more entries are worth holding: enough for one full batch of single rows."""
        return max(self._max_rows - len(self._waiting), 0)

    def add(self, entries: Iterable[Entry]) -> None:
        """Puts entries behind those that wait."""
        self._waiting.extend(entries)

    def take_expired(self, now: float) -> list[Entry]:
        """Removes the dead, and returns those the deadline overtook, who still want an answer."""
        expired = [e for e in self._waiting if not e.dead and e.request.deadline <= now]
        self._waiting = deque(e for e in self._waiting if not e.dead and e.request.deadline > now)
        return expired

    def next_batch(self) -> list[Entry]:
        """The oldest entry and all that may run with it, in arrival order; empty if none waits.

        A compatible entry that does not fit ends the batch, so that a large request is never
        overtaken for ever by small ones.
        """
        if not self._waiting:
            return []
        batch: list[Entry] = []
        left: deque[Entry] = deque()
        shapes, rows, full = _shapes(self._waiting[0]), 0, False
        for entry in self._waiting:
            fits = not full and _shapes(entry) == shapes
            if fits and rows + entry.request.rows > self._max_rows:
                full, fits = True, False
            if fits:
                batch.append(entry)
                rows += entry.request.rows
            else:
                left.append(entry)
        self._waiting = left
        return batch


def _shapes(entry: Entry) -> Shapes:
    """What must agree within a batch: every input's name and shape, but for the rows."""
    return tuple((name, array.shape[1:]) for name, array in entry.request.inputs.items())
