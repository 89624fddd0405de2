"""Counts the bytes that the requests of all pipelines hold between their steps, and limits them.

A request of a few bytes may become many items, each with a copy of an image, and wait with them for
the next step: neither the limits of queues nor those of the wire count these.
"""

from services.errors import BufferFullError

SHARE_OF_MEMORY = 0.25
"""Share of the machine's memory, or the container's, that they may hold."""


class HeldBytes:
    """The bytes of all requests.

    Args:
        limit_bytes: most bytes to hold.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    def take(self, size: int) -> None:
        """Adds bytes.

        Raises:
            BufferFullError: the limit is reached; they are not added.
        """
        if self._held_bytes + size > self._limit_bytes:
            raise BufferFullError(
                f"requests of pipelines hold {self._held_bytes:,} bytes between their steps here, "
                f"and {size:,} more would exceed the limit, {self._limit_bytes:,} (a quarter of "
                "the memory); retry later, send fewer rows or add servers"
            )
        self._held_bytes += size

    def give(self, size: int) -> None:
        """Gives bytes back."""
        self._held_bytes -= size
