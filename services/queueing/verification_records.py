"""What is known of a verification: who proves a version, how far it is, and what came of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called on the event loop with an artifact that is begun, how many are done, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of a verification."""

    certificate: bytes
    """As JSON."""
    recorded_as: str = ""
    """Its path in the store; empty if it could not be written."""
    record_failure: str = ""
    """Why it could not."""


Verify = Callable[[str, int | None, Progress], Awaitable[Verified]]
"""Proves a version, the one in production if none is named; raises a `ServingError`."""
