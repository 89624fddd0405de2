"""The feed of the registry's events: one scan of the store for all readers of this process.

In: the store, scanned while anyone reads. Out: events to each reader, in order, each once.

Rules:
- an event is told once it is `SETTLE_S` old, so that all servers tell events in one order: what
  two writers finish within that time has found its place by then;
- readers are limited in number; one that falls `MAX_BEHIND` events behind is cut off.
"""

import asyncio
import bisect
import itertools
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple

from model_store.records.events import (
    MAX_KEPT,
    EventScan,
    StoredEvent,
    event_document,
    first_after,
)
from model_store.store import ModelStore
from services.errors import (
    InvalidRequestError,
    ServingError,
    ShuttingDownError,
    TooManyInFlightError,
    UnauthenticatedError,
    UnreadAnswersError,
)

logger = logging.getLogger("flambeau.registry")

MAX_READERS = 64
"""Readers of one process."""
MAX_READERS_OF_ONE = 16
"""Those of one caller."""
MAX_BEHIND = 1024
"""Events that wait for one reader."""
SETTLE_S = 1.0
"""Age from which an event is told: longer than a writer takes to make a file visible."""
BUCKET_SETTLE_S = 3.0
"""That of a bucket, whose times of files are whole seconds."""
SCAN_EVERY_S = 1.0
SCAN_BUCKET_EVERY_S = 10.0
"""Interval of scanning a bucket, of which each scan lists all paths."""
READ_AGAIN_S = 1.0
"""Pause after a failure to read an event's record; then the reader sees a sign of life, too."""
EVENTS_AT_ONCE = 64
"""Events that a reader may get without suspending: 0.2 ms of the event loop."""
SIGN_OF_LIFE_S = 15.0
"""Longest silence towards a reader; then its credential is checked, too."""
_BEHIND_S, _BUCKET_BEHIND_S = 0.01, 2.0
"""Time by which the clock of files may be behind, in a folder and in a bucket."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Event(NamedTuple):
    """An event for a reader."""

    id: str
    document: dict[str, Any]


class EventCaller(NamedTuple):
    """A caller that reads events."""

    name: str
    """Callers of one name share the readers of one."""
    reads: Callable[[str], bool]
    """Tells if it may read of a model."""
    is_over: Callable[[], bool]
    """Tells if its credential has ended."""


class EventFeed:
    """The feed of one process.

    Args:
        store: the store.
        in_thread: runs blocking work, and raises errors of calls.
        every_s: seconds between scans; None for the usual interval of the store.
    """

    def __init__(
        self,
        store: ModelStore,
        in_thread: InThread,
        every_s: float | None = None,
    ) -> None:
        self._store = store
        self._in_thread = in_thread
        is_local = store.storage.is_local
        usual_s = SCAN_EVERY_S if is_local else SCAN_BUCKET_EVERY_S
        self._every_s = usual_s if every_s is None else every_s
        self._settle_s = SETTLE_S if is_local else BUCKET_SETTLE_S
        self._behind_s = _BEHIND_S if is_local else _BUCKET_BEHIND_S
        self._scan = EventScan(store)
        self._events: list[StoredEvent] = []
        """Events that were told, in order."""
        self._told: set[StoredEvent] = set()
        self._documents: OrderedDict[StoredEvent, dict[str, Any] | None] = OrderedDict()
        self._reading = asyncio.Lock()
        self._readers: dict[_Reader, None] = {}
        self._by_caller: Counter[str] = Counter()
        self._wanted = asyncio.Event()
        self._scanned = asyncio.Event()
        self._is_leaving = False

    async def run(self) -> None:
        """Scans the store while there are readers, until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                new, self._events, self._told = await self._in_thread(self._look)
            except ServingError as error:
                logger.warning("events of the store wait", extra={"reason": str(error)})
            else:
                self._scanned.set()
                for reader in tuple(self._readers) if new else ():
                    reader.give(new)
            await asyncio.sleep(self._every_s)

    def _look(self) -> tuple[list[StoredEvent], list[StoredEvent], set[StoredEvent]]:
        """Scans the store; returns new events, all that are told, and these as a set."""
        settled_us = int((time.time() - self._settle_s) * 1e6)
        found = self._scan.events()
        found = found[: bisect.bisect_right(found, settled_us, key=lambda one: one.at_us)]
        if found == self._events:
            return [], self._events, self._told
        new = [one for one in found if one not in self._told]
        return new, found, set(found)

    def leave(self) -> None:
        """Ends all readers: the server shuts down."""
        self._is_leaving = True
        error = ShuttingDownError("this server is shutting down; go on at another")
        for reader in tuple(self._readers):
            reader.cut_off(error)

    async def read(self, caller: EventCaller, after: str) -> AsyncGenerator[Event | None, None]:
        """Yields the events that a caller may read, until it leaves.

        Args:
            caller: the caller.
            after: id of the last event that it has; `0` for all that are kept; empty for those
                from now on.

        Yields:
            An event; or None at first, after `SIGN_OF_LIFE_S` without one, and while the store
            cannot be read.

        Raises:
            InvalidRequestError: `after` is no id, or events after it are not kept.
            TooManyInFlightError: too many readers are open.
            UnreadAnswersError: the reader was too slow.
            UnauthenticatedError: its credential has ended.
            ShuttingDownError: the server shuts down.
        """
        now_s = time.time() - self._behind_s
        try:
            first = first_after(after or str(int(now_s * 1e6)))
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        reader = self._join(caller.name)
        try:
            yield None
            await reader.until(self._scanned)
            reader.begin(self._kept_from(first))
            for count in itertools.count(1):
                if not count % EVENTS_AT_ONCE:
                    await asyncio.sleep(0)
                event = await reader.next()
                if caller.is_over():
                    raise UnauthenticatedError("the credential of this stream has ended")
                if event is None:
                    yield None
                elif event >= first and caller.reads(event.model):
                    try:
                        document = await self._document(event)
                    except ServingError as error:
                        if not error.retryable:
                            raise
                        logger.warning("an event waits", extra={"reason": str(error)})
                        reader.put_back(event)
                        await asyncio.sleep(READ_AGAIN_S)
                        yield None
                        continue
                    if document is not None:
                        yield Event(event.id, document)
        finally:
            self._leave(reader)

    async def _document(self, event: StoredEvent) -> dict[str, Any] | None:
        """Reads an event's record, once for all readers."""
        async with self._reading:
            if event not in self._documents:
                found = await self._in_thread(lambda: event_document(self._store, event))
                self._documents[event] = found
                if len(self._documents) > MAX_BEHIND:
                    self._documents.popitem(last=False)
            return self._documents.get(event)

    def _kept_from(self, first: StoredEvent) -> list[StoredEvent]:
        if len(self._events) >= MAX_KEPT and 0 < first.at_us < self._events[0].at_us:
            raise InvalidRequestError(
                f"events before {self._events[0].id} are no longer kept; begin there, with after=0"
            )
        return self._events[bisect.bisect_left(self._events, first) :]

    def _join(self, name: str) -> "_Reader":
        if self._is_leaving:
            raise ShuttingDownError("this server is shutting down; go on at another")
        mine = self._by_caller[name]
        if len(self._readers) >= MAX_READERS or mine >= MAX_READERS_OF_ONE:
            raise TooManyInFlightError(
                f"{len(self._readers)} readers of events are open here, {mine} of them yours; at "
                f"most {MAX_READERS} and {MAX_READERS_OF_ONE} may be: end some"
            )
        reader = _Reader(name)
        self._readers[reader] = None
        self._by_caller[reader.name] += 1
        self._wanted.set()
        return reader

    def _leave(self, reader: "_Reader") -> None:
        del self._readers[reader]
        self._by_caller[reader.name] -= 1
        if not self._by_caller[reader.name]:
            del self._by_caller[reader.name]
        if not self._readers:  # what the next reader sees is scanned anew
            self._wanted.clear()
            self._scanned.clear()


class _Reader:
    """One reader, and the events that wait for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kept: deque[StoredEvent] = deque()
        """Events from before it began."""
        self._new: deque[StoredEvent] = deque()
        self._has_begun = False
        self._error: ServingError | None = None
        self._changed = asyncio.Event()

    def begin(self, kept: list[StoredEvent]) -> None:
        """Takes the events that are told already; later ones are given."""
        self._kept.extend(kept)
        self._has_begun = True

    def give(self, events: list[StoredEvent]) -> None:
        """Adds new events, or cuts the reader off if too many wait."""
        if not self._has_begun:
            return
        self._new.extend(events)
        if len(self._new) > MAX_BEHIND:
            self._new.clear()
            self.cut_off(
                UnreadAnswersError(
                    f"over {MAX_BEHIND} events wait for this reader, the limit; go on after the "
                    "last one that arrived, and read faster"
                )
            )
        self._changed.set()

    def put_back(self, event: StoredEvent) -> None:
        """Makes an event the next one again."""
        self._kept.appendleft(event)

    def cut_off(self, error: ServingError) -> None:
        """Ends the reader."""
        self._error = error
        self._changed.set()

    async def until(self, reached: asyncio.Event) -> None:
        """Waits for the first scan.

        Raises:
            ServingError: the reader was cut off.
        """
        waiting = [asyncio.ensure_future(one.wait()) for one in (reached, self._changed)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if self._error is not None:
            raise self._error

    async def next(self) -> StoredEvent | None:
        """Returns the next event; None after `SIGN_OF_LIFE_S` without one.

        Raises:
            ServingError: the reader was cut off.
        """
        while True:
            if self._error is not None:
                raise self._error
            if self._kept:
                return self._kept.popleft()
            if self._new:
                return self._new.popleft()
            self._changed.clear()
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_S):
                    await self._changed.wait()
            except TimeoutError:
                return None
