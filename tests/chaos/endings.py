"""Count of the processes that were ended on purpose: which lost connection has its reason there."""

from collections.abc import Iterator
from contextlib import contextmanager


class Endings:
    """Endings of processes that may hold connections; begun and finished by one thread."""

    def __init__(self) -> None:
        self._begun = 0
        self._over = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts one ending, which takes as long as the block."""
        self._begun += 1
        try:
            yield
        finally:
            self._over += 1

    def now(self) -> int:
        """Returns a mark; to be taken before a connection is made, or used."""
        return self._over

    def since(self, mark: int) -> bool:
        """Returns True if an ending was under way at a mark, or has begun since."""
        return self._begun > mark
