"""Interface of the clients that send single requests to a server, independent of the protocol."""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol


class Outcome(IntEnum):
    """Outcome of a request."""

    ANSWERED = 0
    REFUSED = 1
    """503 or RESOURCE_EXHAUSTED: the request was not admitted; a retry may help."""
    EXPIRED = 2
    """504 or DEADLINE_EXCEEDED: the request was admitted and not answered in time."""
    WRONG = 3
    """400, 404, INVALID_ARGUMENT or NOT_FOUND: the request itself is at fault."""
    FAILED = 4
    """Anything else."""


Answered = Callable[[Outcome, bytes], None]


class Shooter(Protocol):
    """Sends canned requests with unlimited concurrency."""

    def send(self, number: int, answered: Answered) -> None:
        """Sends one request; `answered` is called once, later.

        Args:
            number: index of the canned request, modulo their count.
            answered: callback for the outcome, and the body or the reason.
        """

    async def send_and_leave(self, number: int, patience_s: float) -> None:
        """Sends one request and disconnects before the response."""

    async def close(self) -> None:
        """Closes all connections."""
