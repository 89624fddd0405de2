"""Webhooks of the registry's events: each event is told to each URL, by one server of a store.

In: the feed of events. Out: a signed POST with the event as JSON; its `webhook-id` is the event's.

    <store>/.events/webhooks/<event>.<digest of the URL>.json    who calls, and what came of it

Rules:
- a server creates this file before it calls, and only one can: servers of a store share the work;
- a call without a 2xx status is repeated; its server renews the claim before each, so another takes
  over only `CLAIM_S` after the server has ended; an event is told at least once, and receivers
  recognise it by its id;
- a server that no longer owns its claim tells the event no more;
- an event is not told any more once it is a day old.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from flambeau.protocol.strict import StrictModel
from model_store.errors import ConflictError, DocumentError
from model_store.records.events import event_of
from model_store.storage.storage import Storage
from model_store.storage.stored_document import stored_document
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
"""Age of a claim from which its server has ended: more than a pause, a wait and a call take."""
RENEW_S = 5.0
"""Age of a claim from which it is renewed before a call."""
MAX_AGE_S = 86_400.0
"""Age of an event from which it is not told."""
FORGET_EVERY_S = 3600.0
LOOK_EVERY_S = 5.0
"""Interval of looking for events whose servers have ended."""
AGAIN_S = 5.0
"""Pause after a failure of the feed."""
MAX_LATER = 4096
"""Events that are told here, or claimed by another server, to look at later. The reader of the feed
waits at this number, and goes on after its last event."""


@dataclass(frozen=True, slots=True)
class WebhookTargets:
    """URLs that are called, and the calls."""

    urls: tuple[str, ...]
    calls: WebhookCalls


State = Literal["claimed", "delivered", "failed"]
Claimed = Literal["here", "by another", "over"]


class Claim(StrictModel):
    """The file of one event and URL."""

    state: State
    at_s: float
    """Unix time of the state."""
    owner: str = ""
    """Token of the server."""


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
        self._places = asyncio.Semaphore(MAX_LATER)
        """A place for each event and URL until it is over, so that none is forgotten."""
        self._open: set[tuple[str, str]] = set()
        """The events and URLs that have one."""
        self._owner = secrets.token_hex(8)
        self._forgotten_s = 0.0

    async def run(self) -> None:
        """Tells events until cancelled."""
        after = str(int((time.time() - MAX_AGE_S) * 1e6))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_often(tasks), name="webhooks of other servers")
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
                        continue
                    for url in self._targets.urls:
                        if (event.id, url) in self._open:  # the feed has begun anew
                            continue
                        await self._places.acquire()
                        self._open.add((event.id, url))
                        await self._telling.acquire()
                        tasks.create_task(self._tell(event, url))
                    begun = event.id
            except ServingError as error:
                if begun == after:
                    raise
                logger.warning("webhooks go on", extra={"after": begun, "reason": str(error)})
        return begun

    async def _look_often(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                await self._look_after(tasks)
            except ServingError as error:
                logger.warning("old webhooks stay", extra={"reason": str(error)})
            await asyncio.sleep(LOOK_EVERY_S)

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
        facts: dict[str, Any] = {"event": event.id, "url": shown_url(url)}
        is_over = False
        try:
            is_over = await self._tell_claimed(event, url, facts)
            if not is_over:
                self._later[event.id, url] = time.time() + CLAIM_S, event
        except ServingError as error:
            logger.warning("a webhook waits", extra={**facts, "reason": str(error)})
            self._later[event.id, url] = time.time() + AGAIN_S, event
        finally:
            self._telling.release()
            if is_over:
                self._open.discard((event.id, url))
                self._places.release()

    async def _tell_claimed(self, event: Event, url: str, facts: dict[str, Any]) -> bool:
        """Tells one event if this server can claim it; returns False if another server has.

        An event of `MAX_AGE_S` is over: its claim may be removed already.
        """
        found = event_of(event.id)
        assert found is not None, "the feed's ids are those of events"
        if time.time() - found.at_us / 1e6 > MAX_AGE_S:
            return True
        path = claim_path(event.id, url)
        claimed: Claimed = await self._in_thread(lambda: self._claim(path))
        if claimed != "here":
            return claimed == "over"
        status = await self._call(event, url)
        if status is None:
            logger.warning("a webhook was taken over", extra=facts)
            return False
        is_told = 200 <= status < 300
        facts |= {"status": status}
        if is_told:
            logger.info("webhook delivered", extra=facts)
        else:
            logger.error("webhook aborted", extra=facts)
        state: State = "delivered" if is_told else "failed"
        await self._in_thread(lambda: self._storage.replace(path, self._claim_data(state)))
        return True

    async def _call(self, event: Event, url: str) -> int | None:
        """Calls until a status is 2xx; returns the last, or None once another server took over."""
        kind = f"registry.{event.document['kind']}"
        document = {"type": kind, "timestamp": event.document["at"], "data": event.document}
        body, status, path = orjson.dumps(document), 0, claim_path(event.id, url)
        claimed_s, calls = time.monotonic(), self._targets.calls
        for pause_s in self._pauses_s:
            await asyncio.sleep(pause_s)
            async with calls.turn(url), self._calling:
                if time.monotonic() - claimed_s >= RENEW_S:
                    is_renewed: bool = await self._in_thread(lambda: self._renew(path))
                    if not is_renewed:
                        return None
                    claimed_s = time.monotonic()
                status = await calls.post(url, event.id, body)
            if 200 <= status < 300:
                break
        return status

    def _claim(self, path: str) -> Claimed:
        """Claims an event, unless another server has, or it is over."""
        try:
            self._storage.create(path, self._claim_data("claimed"))
            return "here"
        except ConflictError:
            pass
        found = self._claim_at(path)
        if found is None or found.state != "claimed":
            return "over"
        if time.time() - found.at_s < CLAIM_S:
            return "by another"
        self._storage.replace(path, self._claim_data("claimed"))
        found = self._claim_at(path)  # several may take over; the last one owns it
        return "here" if found is not None and found.owner == self._owner else "by another"

    def _renew(self, path: str) -> bool:
        """Renews a claim of this server; returns False if another has taken over."""
        found = self._claim_at(path)
        if found is None or found.owner != self._owner:
            return False
        self._storage.replace(path, self._claim_data("claimed"))
        return True

    def _claim_at(self, path: str) -> Claim | None:
        """Reads a claim; None if it has gone, and one of nobody if it is damaged."""
        try:
            return stored_document(self._storage, path, Claim)
        except DocumentError:  # its server ended while it wrote
            return Claim(state="claimed", at_s=0)

    def _claim_data(self, state: State) -> bytes:
        claim = Claim(state=state, at_s=time.time(), owner=self._owner)
        return claim.model_dump_json().encode()

    def _forget(self, now_s: float) -> None:
        """Removes the claims of events that are not told any more."""
        for path in self._storage.list(f"{FOLDER}/"):
            at = path.rpartition("/")[2].partition(".")[0]
            if at.isdecimal() and now_s - int(at) / 1e6 > 2 * MAX_AGE_S:
                self._storage.delete(path)


def claim_path(event_id: str, url: str) -> str:
    """Returns the path of the claim of an event for a URL."""
    assert event_of(event_id) is not None, "it becomes a part of a path"
    return f"{FOLDER}/{event_id}.{_digest(url)}.json"


def shown_url(url: str) -> str:
    """Returns a URL for logs: its path and query may be a secret, so a digest stands for them."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}/#{_digest(url)}"


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:8]
