"""Which loaded versions fit into a device's memory, by what loading them was measured to take.

In: the limit, and the bytes of each version as it was measured. Out: room, the idle versions to
unload for it, or a refusal with the figures. Pure: measuring is done by the caller.

What the first version of a runtime took holds that runtime too, which stays when the version
leaves: what is the server's own is told anew before each load.
"""

from collections.abc import Iterable

from services.inference.loading.loader import LoadError
from services.queueing.records import Lane

MEBIBYTE = 2**20


class OutOfMemoryError(LoadError):
    """The version does not fit; the message has the figures."""


class MemoryAdmission:
    """The account of one device.

    Args:
        limit_bytes: the most that may be used.
        base_bytes: what was used before any version was loaded.
    """

    def __init__(self, limit_bytes: int, base_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._first_base_bytes = self._base_bytes = base_bytes
        self._measured: dict[Lane, int] = {}
        self._loaded: set[Lane] = set()
        self._left: set[Lane] = set()
        """Unloaded since it was last told what is in use."""

    def expected_bytes(self, lane: Lane, file_bytes: int) -> int:
        """What loading a version should take: as measured before, or at least its file."""
        return self._measured.get(lane, file_bytes)

    def room_bytes(self, lane: Lane) -> int:
        """What is free for a version, itself not counted; at least one byte."""
        others = sum(self._measured[other] for other in self._loaded if other != lane)
        return max(self._limit_bytes - self._base_bytes - others, 1)

    def in_use(self, used_bytes: int) -> None:
        """Tells what is used now, while nothing loads or leaves: the rest is the server's own."""
        versions = sum(self._measured[lane] for lane in self._loaded)
        base_bytes = max(used_bytes - versions, self._first_base_bytes)
        stayed = max(base_bytes - self._base_bytes, 0)
        for lane in self._left:  # too low a guess costs a try: what loading takes is measured
            self._measured[lane] = max(self._measured[lane] - stayed, 0)
        self._left.clear()
        self._base_bytes = base_bytes

    def loaded(self, lane: Lane, measured_bytes: int) -> None:
        """Enters a version that has been loaded."""
        self._measured[lane] = measured_bytes
        self._loaded.add(lane)
        self._left.discard(lane)

    def unloaded(self, lane: Lane) -> None:
        """Takes a version out; what it took is remembered, less what stays of it."""
        self._loaded.discard(lane)
        self._left.add(lane)

    def to_unload(self, lane: Lane, need_bytes: int, idle: Iterable[Lane]) -> list[Lane]:
        """The fewest idle versions, least recently used first, that make room.

        Args:
            lane: what is to be loaded, or has just been.
            need_bytes: what it takes.
            idle: versions that may be unloaded, least recently used first.

        Returns:
            Empty when it fits as it is.

        Raises:
            OutOfMemoryError: it does not fit even then.
        """
        others = sum(self._measured[other] for other in self._loaded if other != lane)
        missing = self._base_bytes + others + need_bytes - self._limit_bytes
        leaving: list[Lane] = []
        for other in idle:
            if missing <= 0:
                break
            if other != lane and other in self._loaded:
                leaving.append(other)
                missing -= self._measured[other]
        if missing > 0:
            versions = len({other.default for other in self._loaded} - {lane})
            raise OutOfMemoryError(
                f"model {lane} needs {_mebibytes(need_bytes)} and does not fit: "
                f"{_mebibytes(self._limit_bytes)} are the limit (max_memory_mib), "
                f"{_mebibytes(self._base_bytes)} the server's own, {_mebibytes(others)} taken by "
                f"{versions} other versions; raise the limit, serve fewer models or set "
                "when_memory_full=unload_idle"
            )
        return leaving


def _mebibytes(count: int) -> str:
    """Rounded up, so that the parts of a sum that is too large never add up to the limit."""
    return f"{-(-count // MEBIBYTE)} MiB"
