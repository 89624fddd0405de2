"""Schedules concurrent loads, and attributes the memory growth of the process to them.

In: versions to load, with the size of their files. Out: turns. Pure, except for waiting.

A version's memory is measured as the growth of the whole process while it loads. So a version loads
alone if memory is short, since the figures must be exact then; if it is ample, as many versions
load concurrently as there are cores, and the growth is divided in proportion to their files.

The handler of an archive of TorchServe's is initialized in a process of its own, whose memory is
that process's, and may hang until its time limit. So it keeps its turn for a few seconds only, as
long as few others do the same.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass

from services.queueing.records import Lane

AMPLE = 20
"""Versions load concurrently while the free memory is at least this many times the size of all
their files: a loaded file seldom takes more than four times its size."""

PATIENCE_S = 5.0
"""Time for which a load in a process of its own delays others: importing torch takes 2 to 3 s."""
MAX_SLOW = 8
"""Most loads that have had their turn for `PATIENCE_S` when another begins: how much memory they
will take is seldom known."""


@dataclass(slots=True, eq=False)
class Load:
    """One version that is loading."""

    lane: Lane
    file_bytes: int
    is_slow: bool = False
    """True if it runs apart, and has had its turn for `PATIENCE_S`: others no longer wait."""
    together_bytes: int = 0
    """Size of the files of all overlapping loads, this one included."""

    @property
    def share(self) -> float:
        """This version's share of the process' growth during its load."""
        return self.file_bytes / self.together_bytes if self.together_bytes else 1.0


class LoadTurns:
    """Grants turns to load.

    Args:
        most: maximum number of versions that load at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._loading: set[Load] = set()
        self._changed = asyncio.Condition()

    @property
    def is_quiet(self) -> bool:
        """True if at most one version is loading, so that memory growth can be attributed."""
        return len(self._loading) <= 1

    @contextlib.asynccontextmanager
    async def turn(
        self,
        lane: Lane,
        file_bytes: int,
        room_bytes: Callable[[], int],
        is_apart: bool = False,
    ) -> AsyncIterator[Load]:
        """Waits for a turn, which lasts until the end of the `async with` block.

        Args:
            lane: lane to load.
            file_bytes: size of its files.
            room_bytes: function that returns the free memory; 0 for unknown, to load alone.
            is_apart: True if it loads in a process of its own, which may hang.
        """
        load = Load(lane, max(file_bytes, 1))
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_begin(load, room_bytes))
            self._loading.add(load)
            together = sum(other.file_bytes for other in self._loading)
            for other in self._loading - {load}:
                other.together_bytes += load.file_bytes
            load.together_bytes = together
        patience = self._patience_with(load) if is_apart else None
        try:
            yield load
        finally:
            if patience is not None:
                patience.cancel()
            async with self._changed:
                self._loading.discard(load)
                self._changed.notify_all()

    def _patience_with(self, load: Load) -> "asyncio.Task[None]":
        """Has others begin, once a load has had its turn for long."""

        async def wait() -> None:
            await asyncio.sleep(PATIENCE_S)
            load.is_slow = True
            async with self._changed:
                self._changed.notify_all()

        return asyncio.get_running_loop().create_task(wait())

    def _may_begin(self, load: Load, room_bytes: Callable[[], int]) -> bool:
        loading = [other for other in self._loading if not other.is_slow]
        if len(self._loading) - len(loading) >= MAX_SLOW:
            return False
        if not loading:
            return True
        if load.lane.artifact:
            return False
        needed = sum(not other.lane.artifact for other in loading)
        need_bytes = load.file_bytes + sum(other.file_bytes for other in loading)
        return needed < self._most and AMPLE * need_bytes <= room_bytes()


class VersionLoads:
    """Loads the versions of one model, one after the other.

    A load apart that takes longer than `PATIENCE_S` no longer delays the others: it may hang.

    Attributes:
        loading: versions that are being loaded.
        apart: those of them that load in processes of their own.
        tried: versions that begin no second time; one that is removed from it does.
        changed: set when the wanted versions may have changed.
    """

    def __init__(self) -> None:
        self.loading: set[int] = set()
        self.apart: set[int] = set()
        self.tried: set[int] = set()
        self.changed = asyncio.Event()

    async def run(
        self,
        wanted: Callable[[], Iterable[int]],
        load: Callable[[int], Coroutine[None, None, None]],
        loaded: Callable[[], None],
    ) -> None:
        """Loads until every wanted version was tried once. If none is wanted, starts no task.

        Args:
            wanted: returns the versions to load, the most urgent first; they may change meanwhile.
            load: loads a version, and handles its errors.
            loaded: called right after each load, before anything else runs on the loop, so that a
                version that is logged as ready is live as soon as a caller can have read so; and
                at the end, for what moved while nothing was loaded.
        """
        clock = asyncio.get_running_loop().time
        self.tried.clear()
        running: dict[asyncio.Task[None], tuple[int, float]] = {}

        async def load_one(version: int) -> None:
            try:
                await load(version)
            finally:
                self._end(version)
            loaded()

        try:
            while True:
                self.changed.clear()
                known, now = self.tried | self.loading, clock()
                version = next((one for one in wanted() if one not in known), None)
                late = (
                    one in self.apart and now - at >= PATIENCE_S for one, at in running.values()
                )
                if version is not None and all(late):
                    self.tried.add(version)
                    self.loading.add(version)
                    running[asyncio.create_task(load_one(version))] = version, now
                elif not running:
                    break
                for task in await self._first_done(running, version is not None):
                    del running[task]
                    task.result()
            loaded()
        finally:
            for task, (version, _) in running.items():
                task.cancel()
                self._end(version)
            await asyncio.gather(*running, return_exceptions=True)

    def _end(self, version: int) -> None:
        self.loading.discard(version)
        self.apart.discard(version)

    async def _first_done(
        self, running: Collection[asyncio.Task[None]], has_next: bool
    ) -> set[asyncio.Task[None]]:
        """Returns the loads that are over, once one is, or another one may have to begin."""
        wake = asyncio.create_task(self.changed.wait())
        try:
            await asyncio.wait(
                {*running, wake},
                timeout=PATIENCE_S if has_next else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            wake.cancel()
        return {task for task in running if task.done()}
