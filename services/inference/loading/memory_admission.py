"""Admits versions to a device's memory, by the measured memory of their loads.

In: the limit, the measured bytes of each version, and the expected ones of those that load. Out:
the free memory, the idle versions to unload, or a refusal with the figures. Pure: the caller
measures.

The memory of the first version of a runtime includes that runtime, which stays when the version is
unloaded: the server's own memory is determined anew before each load.
"""

import contextlib
from collections.abc import Iterable, Iterator

from services.inference.loading.loader import LoadError
from services.queueing.records import Lane

MEBIBYTE = 2**20


class OutOfMemoryError(LoadError):
    """The version does not fit; the message has the figures.

    Args:
        message: of the error.
        is_passing: True if it fits once versions that are at work now have answered.
    """

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class MemoryAdmission:
    """The account of one device.

    Args:
        limit_bytes: the most memory that may be used.
        base_bytes: memory that was used before any version was loaded.
    """

    def __init__(self, limit_bytes: int, base_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._first_base_bytes = self._base_bytes = base_bytes
        self._measured: dict[Lane, int] = {}
        self._loaded: set[Lane] = set()
        self._loading: dict[Lane, int] = {}
        """Expected bytes of versions that load."""
        self._left: set[Lane] = set()
        """Lanes that were unloaded since the last `in_use`."""

    def expected_bytes(self, lane: Lane, file_bytes: int) -> int:
        """Returns the expected memory of a version: as measured before, or else its file size."""
        return self._measured.get(lane, file_bytes)

    def room_bytes(self, lane: Lane) -> int:
        """Returns the memory available to a version, counting its own as free; at least a byte."""
        others = sum(self._others(lane).values())
        return max(self._limit_bytes - self._base_bytes - others, 1)

    def _others(self, lane: Lane) -> dict[Lane, int]:
        """Returns the bytes of the other versions that are loaded, or load."""
        loaded = {other: self._measured[other] for other in self._loaded}
        return {other: taken for other, taken in (self._loading | loaded).items() if other != lane}

    @contextlib.contextmanager
    def loading(self, lane: Lane, expected_bytes: int) -> Iterator[None]:
        """Reserves memory for a version while it loads, in the `with` block."""
        self._loading[lane] = expected_bytes
        try:
            yield
        finally:
            del self._loading[lane]

    def in_use(self, used_bytes: int) -> None:
        """Updates the server's own memory from the total usage; no lane may load or unload then."""
        versions = sum(self._measured[lane] for lane in self._loaded)
        base_bytes = max(used_bytes - versions, self._first_base_bytes)
        stayed = max(base_bytes - self._base_bytes, 0)
        for lane in self._left:  # a low estimate costs one attempt: the next load is measured
            self._measured[lane] = max(self._measured[lane] - stayed, 0)
        self._left.clear()
        self._base_bytes = base_bytes

    def loaded(self, lane: Lane, measured_bytes: int) -> None:
        """Adds a version that was loaded."""
        self._measured[lane] = measured_bytes
        self._loaded.add(lane)
        self._left.discard(lane)

    def unloaded(self, lane: Lane) -> None:
        """Removes a version; keeps its measured memory, less what stays allocated after it."""
        self._loaded.discard(lane)
        self._left.add(lane)

    def to_unload(self, lane: Lane, need_bytes: int, idle: Iterable[Lane]) -> list[Lane]:
        """Returns the fewest idle versions, least recently used first, that make room.

        Args:
            lane: lane to be loaded, or just loaded.
            need_bytes: memory that it takes.
            idle: versions that may be unloaded, least recently used first.

        Returns:
            The versions to unload; empty if none is necessary.

        Raises:
            OutOfMemoryError: it does not fit even without all of them.
        """
        others = self._others(lane)
        others_bytes = sum(others.values())
        missing = self._base_bytes + others_bytes + need_bytes - self._limit_bytes
        leaving: list[Lane] = []
        for other in idle:
            if missing <= 0:
                break
            if other != lane and other in self._loaded:
                leaving.append(other)
                missing -= self._measured[other]
        if missing > 0:
            at_work = others.keys() - leaving
            versions = len({other.default for other in others} - {lane})
            raise OutOfMemoryError(
                f"model {lane} needs {_mebibytes(need_bytes)} and does not fit: "
                f"{_mebibytes(self._limit_bytes)} are the limit (max_memory_mib), "
                f"{_mebibytes(self._base_bytes)} the server's own, {_mebibytes(others_bytes)} "
                f"taken by {versions} other versions; raise the limit, serve fewer models or set "
                "when_memory_full=unload_idle",
                is_passing=missing <= sum(others[other] for other in at_work),
            )
        return leaving


def _mebibytes(count: int) -> str:
    """Formats bytes, rounded up: the parts of an excessive sum must not add up to the limit."""
    return f"{-(-count // MEBIBYTE)} MiB"
