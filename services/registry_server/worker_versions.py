"""The versions that the workers of a split server hold, and that are not deleted.

In: the workers' announcements. Out: if one of them holds a version.

Rule: the last announcements alone count. A version that all workers have dropped is held by nobody,
though the directory still answers its requests.
"""

from services.errors import QueueUnavailableError
from services.queueing.fleet import FleetView
from services.queueing.records import Lane
from services.queueing.redis_streams.outage import Outage, unreachable


class WorkerVersions:
    """The versions of the last announcements.

    Args:
        outage: outages of the Redis through which workers announce.
    """

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._view: FleetView | None = None

    @property
    def has_seen_workers(self) -> bool:
        """Returns True once the announcements were read, though there may be none."""
        return self._view is not None

    def follow(self, view: FleetView) -> None:
        """Takes the present announcements."""
        self._view = view

    def holds(self, model: str, version: int) -> bool:
        """Returns True if a worker serves or loads a version, or loads it again for a request.

        Raises:
            QueueUnavailableError: that is not known: Redis is out of reach, or no worker has
                read the store.
        """
        if self._outage.why or self._view is None:
            raise unreachable(self._outage.why or "the workers' versions have not been read yet")
        if not self._view.started:
            raise QueueUnavailableError(
                "no worker tells which versions it holds: none has started, or all have stopped; "
                "start one and try again, or delete versions of the store itself "
                "(docs/guides/scaling.md)"
            )
        served = self._view.versions.get(Lane(model, version))
        return served is not None and served.state != "failed"
