"""Webhooks of the registry's events: each event is told to each URL, by one server of a store.

In: the feed of events. Out: a signed POST with the event as JSON; its `webhook-id` is the event's.

    <store>/.events/webhooks/<event>.<digest of the URL>.json    who calls, and what came of it

Rules:
- a server creates this file before it calls, and only one can: servers of a store share the work;
- a call without a 2xx status is repeated; if its server ends, another takes over after `CLAIM_S`,
  so an event is told at least once, and receivers recognise it by its id;
- an event is not told any more once it is a day old.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from flambeau.protocol.strict import StrictModel
from model_store.document import SMALL, parse_as
from model_store.errors import ConflictError, DocumentError
from model_store.records.events import event_of
from model_store.storage.storage import MissingFileError, Storage
from services.errors import InvalidRequestError, ServingError
from services.registry.event_feed import Event, EventCaller, EventFeed
from services.webhook_calls import WebhookCalls

logger = logging.getLogger("flambeau.webhooks")

FOLDER = ".events/webhooks"
AT_ONCE = 8
"""Calls at once, each in a thread."""
MAX_TELLING = 256
"""Events that are being told, or wait to be told again: receivers that are away delay others."""
PAUSES_S = (0.0, 5.0, 30.0, 120.0, 300.0)
"""Pauses before each call for one event."""
CLAIM_S = 900.0
"""Age of a claim from which its server has ended: more than all pauses and calls take."""
MAX_AGE_S = 86_400.0
"""Age of an event from which it is not told."""
FORGET_EVERY_S = 3600.0
AGAIN_S = 5.0
"""Pause after a failure of the feed."""
MAX_LATER = 4096
"""Events that another server has claimed, to look at later."""


@dataclass(frozen=True, slots=True)
class WebhookTargets:
    """URLs that are called, and the calls."""

    urls: tuple[str, ...]
    calls: WebhookCalls


class Claim(StrictModel):
    """The file of one event and URL."""

    state: Literal["claimed", "delivered", "failed"]
    at_s: float
    """Unix time of the state."""


class EventWebhooks:
    """Tells the events of one store.

    Args:
        feed: the events.
        storage: storage of the store.
        targets: URLs and calls.
        in_thread: runs blocking work of the store, and raises errors of calls.
        pauses_s: pauses before each call for one event.
    """

    def __init__(
        self,
        feed: EventFeed,
        storage: Storage,
        targets: WebhookTargets,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        self._feed = feed
        self._storage = storage
        self._targets = targets
        self._in_thread = in_thread
        self._pauses_s = pauses_s
        self._telling = asyncio.Semaphore(MAX_TELLING)
        self._calling = asyncio.Semaphore(AT_ONCE)
        self._later: dict[tuple[str, str], tuple[float, Event]] = {}
        self._forgotten_s = 0.0

    async def run(self) -> None:
        """Tells events until cancelled."""
        after = str(int((time.time() - MAX_AGE_S) * 1e6))
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    after = await self._follow(after, tasks)
                except InvalidRequestError:  # events after it are no longer kept
                    after = "0"
                except ServingError as error:
                    logger.warning("webhooks wait", extra={"reason": str(error)})
                    await asyncio.sleep(AGAIN_S)

    async def _follow(self, after: str, tasks: asyncio.TaskGroup) -> str:
        """Tells the events after one; returns the last, once the feed has cut this reader off."""
        caller = EventCaller("webhooks of this server", lambda _: True, lambda: False)
        begun = after
        async with aclosing(self._feed.read(caller, after)) as events:
            try:
                async for event in events:
                    if event is None:
                        await self._look_after(tasks)
                        continue
                    for url in self._targets.urls:
                        await self._telling.acquire()
                        tasks.create_task(self._tell(event, url))
                    begun = event.id
            except ServingError as error:
                if begun == after:
                    raise
                logger.warning("webhooks go on", extra={"after": begun, "reason": str(error)})
        return begun

    async def _look_after(self, tasks: asyncio.TaskGroup) -> None:
        """Takes over from servers that have ended, and removes old claims."""
        now_s = time.time()
        for (_, url), (at_s, event) in tuple(self._later.items()):
            if at_s <= now_s:
                del self._later[event.id, url]
                await self._telling.acquire()
                tasks.create_task(self._tell(event, url))
        if now_s - self._forgotten_s > FORGET_EVERY_S:
            self._forgotten_s = now_s
            await self._in_thread(lambda: self._forget(now_s))

    async def _tell(self, event: Event, url: str) -> None:
        """Tells one event to one URL, unless another server does."""
        path = claim_path(event.id, url)
        facts: dict[str, Any] = {"event": event.id, "url": url}
        try:
            claimed = await self._in_thread(lambda: self._claim(path))
            if claimed == "by another" and len(self._later) < MAX_LATER:
                self._later[event.id, url] = time.time() + CLAIM_S, event
            if claimed != "here":
                return
            status = await self._call(event, url)
            is_told = 200 <= status < 300
            facts |= {"status": status}
            if is_told:
                logger.info("webhook delivered", extra=facts)
            else:
                logger.error("webhook aborted", extra=facts)
            state: Literal["delivered", "failed"] = "delivered" if is_told else "failed"
            await self._in_thread(lambda: self._storage.replace(path, _claim(state)))
        except ServingError as error:
            logger.warning("a webhook waits", extra={**facts, "reason": str(error)})
            self._later[event.id, url] = time.time() + AGAIN_S, event
        finally:
            self._telling.release()

    async def _call(self, event: Event, url: str) -> int:
        kind = f"registry.{event.document['kind']}"
        document = {"type": kind, "timestamp": event.document["at"], "data": event.document}
        body, status = orjson.dumps(document), 0
        for pause_s in self._pauses_s:
            await asyncio.sleep(pause_s)
            calls = self._targets.calls
            async with calls.turn(url), self._calling:
                status = await calls.post(url, event.id, body)
            if 200 <= status < 300:
                break
        return status

    def _claim(self, path: str) -> Literal["here", "by another", "over"]:
        """Claims an event, unless another server has, or it is over."""
        try:
            self._storage.create(path, _claim("claimed"))
            return "here"
        except ConflictError:
            pass
        try:
            found = parse_as(Claim, self._storage.get(path, SMALL.max_bytes), path, SMALL)
        except MissingFileError:
            return "over"
        except DocumentError:  # its server ended while it wrote
            found = Claim(state="claimed", at_s=0)
        if found.state != "claimed":
            return "over"
        if time.time() - found.at_s < CLAIM_S:
            return "by another"
        self._storage.replace(path, _claim("claimed"))
        return "here"

    def _forget(self, now_s: float) -> None:
        """Removes the claims of events that are not told any more."""
        for path in self._storage.list(f"{FOLDER}/"):
            at = path.rpartition("/")[2].partition(".")[0]
            if at.isdecimal() and now_s - int(at) / 1e6 > 2 * MAX_AGE_S:
                self._storage.delete(path)


def claim_path(event_id: str, url: str) -> str:
    """Returns the path of the claim of an event for a URL."""
    assert event_of(event_id) is not None, "it becomes a part of a path"
    return f"{FOLDER}/{event_id}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.json"


def _claim(state: Literal["claimed", "delivered", "failed"]) -> bytes:
    return Claim(state=state, at_s=time.time()).model_dump_json().encode()
