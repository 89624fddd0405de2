"""What sends requests to a server one at a time, whatever they travel by."""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol


class Outcome(IntEnum):
    """How a request ended."""

    ANSWERED = 0
    REFUSED = 1
    """503 or RESOURCE_EXHAUSTED: it was not let in, a retry may help."""
    EXPIRED = 2
    """504 or DEADLINE_EXCEEDED: it was let in and not answered in time."""
    WRONG = 3
    """400, 404, INVALID_ARGUMENT or NOT_FOUND: the request itself is at fault."""
    FAILED = 4
    """Anything else."""


Answered = Callable[[Outcome, bytes], None]


class Shooter(Protocol):
    """Sends canned requests, as many at once as are asked for."""

    def send(self, number: int, answered: Answered) -> None:
        """Sends one; `answered` is called once, later.

        Args:
            number: which of the canned requests, counted round and round.
            answered: gets the outcome, and the body or the reason.
        """

    async def send_and_leave(self, number: int, patience_s: float) -> None:
        """Sends one and hangs up before its answer."""

    async def close(self) -> None:
        """Hangs up."""
