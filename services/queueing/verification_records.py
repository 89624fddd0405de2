"""Records of a verification: its function, its progress and its result."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called on the event loop with the artifact that begins, the number done, and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of a verification."""

    certificate: bytes
    """The certificate as JSON."""
    recorded_as: str = ""
    """Its path in the store; empty if it could not be written."""
    record_failure: str = ""
    """Reason for which it could not be written."""


Verify = Callable[[str, int | None, Progress], Awaitable[Verified]]
"""Verifies a version, the one in production if none is named; raises a `ServingError`."""
