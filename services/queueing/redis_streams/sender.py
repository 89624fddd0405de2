"""The gateway's end of a queue on Redis.

In: entries of a lane, as a worker of this process would get them. Out: the same requests on the
lane's streams; their outcomes, when they come back, finish the entries.

Rules:
- an outcome of an answered request is dropped: a request may run twice, if its worker seems dead
  or Redis lost it, and is answered once; of several answers, each arrives once, in order;
- a request that Redis confirmed and lost (a failover, a restart without its file) is sent again;
- outcomes of different lanes are delivered in turn, so that those of a few requests do not wait for
  thousands of another model's;
- while Redis is unreachable, requests are refused at once (503).
"""

import asyncio
import contextlib
import logging
import math
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from redis.exceptions import RedisError, ResponseError

from services.errors import ServingError
from services.queueing.host_files import HostFiles
from services.queueing.merged_requests import rows_that_merge
from services.queueing.records import Lane, ServedVersion
from services.queueing.redis_streams.clients import BLOCK_S, RedisClients
from services.queueing.redis_streams.keys import alive_key, large_replies_key, replies_key
from services.queueing.redis_streams.large_records import TransferLimit, length_of, load_outcome
from services.queueing.redis_streams.outage import unreachable
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.sending_lane import SendingLane
from services.queueing.redis_streams.uplink import Sent, Uplink
from services.queueing.redis_streams.wire import Reference, decode_outcome, reference_in

logger = logging.getLogger("flambeau.queue")

REPLIES_AT_ONCE = 128
FETCHED_AHEAD = 384
FETCHED_AHEAD_BYTES = 16 * 2**20
"""Outcomes that are here and not delivered, up to which more are fetched: in Redis, those of all
lanes are in one line."""
ANSWERS_AT_ONCE = 32
"""Outcomes delivered in one turn of the event loop, which must be free again within 1 ms."""
ALIVE_S = 5
"""Time without a heartbeat after which a gateway is dead, and its requests are dropped."""
HEARTBEAT_EVERY_S = 1.0
LOOK_FOR_LOST_EVERY_S = 2.0
RETRY_S = 0.2
"""Pause after a fault of Redis."""
LOG_AGAIN_S = 60.0
"""Interval of log lines while Redis refuses to return outcomes."""
NUMBER = struct.Struct(">Q")
"""Prefix of an outcome: the number of its request."""


class RedisSender:
    """Sends the requests of a gateway and receives their outcomes.

    Args:
        clients: of the Redis that the workers read from.
        gateway: a name no other process has, without blanks.
        max_depth: the most requests a lane may hold in Redis.
        unreached: callback for the reason, as long as Redis has never answered.
        files: of this host, under the gateway's name; None to send everything through Redis.
    """

    def __init__(
        self,
        clients: RedisClients,
        gateway: str,
        max_depth: int,
        unreached: Callable[[str], None] = lambda _: None,
        files: HostFiles | None = None,
    ) -> None:
        self._outage, self._unreached = clients.outage, unreached
        self._redis, self._blocking = clients.open(), clients.open_blocking()
        self._uplink = Uplink(
            redis=self._redis,
            gateway=gateway,
            max_depth=max_depth,
            record_trip=self._record_trip,
            refusal=unreachable("it has not been contacted yet"),
            files=files or HostFiles(),
        )
        self.reached = asyncio.Event()
        """Set at the first answer of Redis."""
        # One large answer at a time: its memory is charged only once it is here.
        self._reading = TransferLimit(1)
        self._fetching: set[asyncio.Task[None]] = set()
        """Tasks that fetch large outcomes, and drop unwanted ones."""
        self._arrived: dict[Lane, deque[tuple[int, memoryview]]] = {}
        """Undelivered outcomes by lane, each with the number of its request; the first lane is
        next."""
        self._undelivered = self._undelivered_bytes = 0
        self._has_more, self._has_room = asyncio.Event(), asyncio.Event()
        """Set while some are undelivered, and while there is room for more."""
        self._has_room.set()
        self._alive_script = Script("alive")
        self._replies, self._alive = replies_key(gateway), alive_key(gateway)
        self._large_replies = large_replies_key(gateway)
        self._logged_at = -math.inf

    @property
    def up(self) -> bool:
        """True if Redis answered the last command."""
        return self._uplink.refusal is None

    def lane(self, lane: Lane) -> SendingLane:
        """Returns the intake of a lane."""
        return SendingLane(self._uplink, lane)

    def learn(
        self,
        row_s: Mapping[Lane, float],
        workers: Mapping[Lane, Collection[str]],
        versions: Iterable[ServedVersion] = (),
    ) -> None:
        """Learns of the workers: their speed, names and versions, as in `FleetView`."""
        uplink = self._uplink
        uplink.row_s, uplink.workers = row_s, workers
        uplink.merged_rows.clear()
        uplink.merged_rows.update(rows_that_merge(versions))

    async def run(self) -> None:
        """Receives outcomes until cancelled; survives any fault of Redis."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_heartbeats())
                tasks.create_task(self._receive())
                tasks.create_task(self._deliver_more())
                tasks.create_task(self._look_for_lost())
        finally:
            await self._leave()

    def _record_trip(self, error: RedisError | None) -> None:
        """Records whether Redis answered, and reports changes."""
        if error is None:
            self._uplink.refusal = None
            self._outage.answered()
            self.reached.set()
            return
        self._uplink.refusal = unreachable(str(error))
        self._outage.failed(error)
        if not self.reached.is_set():
            self._unreached(f"the queue is unreachable: {self._outage.why}")

    async def _receive(self) -> None:
        while True:
            await self._has_room.wait()
            try:
                found = await self._blocking.send(
                    "BLMPOP", BLOCK_S, 1, self._replies, "LEFT", "COUNT", REPLIES_AT_ONCE
                )
            except ResponseError as error:
                await self._mend_replies(error)
                await asyncio.sleep(RETRY_S)
            except RedisError:
                await asyncio.sleep(RETRY_S)
            else:
                self._sort(found[1] if found else [])
                if not self._has_more.is_set():
                    self._deliver()

    async def _deliver_more(self) -> None:
        """Delivers what is left in further turns of the loop, while more is fetched."""
        while True:
            await self._has_more.wait()
            self._deliver()
            await asyncio.sleep(0)

    async def _mend_replies(self, error: ResponseError) -> None:
        """Deletes what another client has written to the key of the outcomes, and logs it."""
        is_foreign = str(error).startswith("WRONGTYPE")
        if time.monotonic() - self._logged_at >= LOG_AGAIN_S:
            self._logged_at = time.monotonic()
            remedy = "give this gateway's user all commands on keys that begin with flambeau:"
            if is_foreign:
                remedy = "it is deleted; let no other client write keys that begin with flambeau:"
            facts = {"key": self._replies, "reason": str(error), "remedy": remedy}
            logger.error("Redis does not return the outcomes of requests", extra=facts)
        if is_foreign:
            with contextlib.suppress(RedisError):
                await self._redis.send("DEL", self._replies)

    def _sort(self, outcomes: list[bytes]) -> None:
        """Sorts outcomes that have come by the lanes of their requests."""
        unwanted: list[str] = []
        for data in outcomes:
            if len(data) < NUMBER.size:
                logger.error("an outcome without a number; dropping it")
                continue
            (number,) = NUMBER.unpack_from(data)
            sent, content = self._uplink.unanswered.get(number), memoryview(data)[NUMBER.size :]
            if sent is None:
                unwanted += [key] if (key := reference_in(content)) else []
                continue
            self._arrived.setdefault(sent.lane.lane, deque()).append((number, content))
            self._undelivered += 1
            self._undelivered_bytes += len(content)
        if unwanted:
            self._start(self._drop(unwanted))

    def _deliver(self) -> None:
        """Finishes the entries of some outcomes, one of each lane in turn."""
        answered = 0
        while self._undelivered and answered < ANSWERS_AT_ONCE:
            lane = next(iter(self._arrived))
            outcomes = self._arrived.pop(lane)
            number, content = outcomes.popleft()
            self._undelivered -= 1
            self._undelivered_bytes -= len(content)
            if outcomes:
                self._arrived[lane] = outcomes
            answered += self._hand_over(number, content)
        if not self._undelivered:
            self._has_more.clear()
        elif not self._has_more.is_set():
            self._has_more.set()
        if self._undelivered > FETCHED_AHEAD or self._undelivered_bytes > FETCHED_AHEAD_BYTES:
            self._has_room.clear()
        elif not self._has_room.is_set():
            self._has_room.set()

    def _hand_over(self, number: int, content: memoryview) -> int:
        """Finishes the entry of an outcome, unless it has been answered meanwhile.

        Returns the number of its requests.
        """
        sent = self._uplink.unanswered.get(number)
        if sent is None:
            if key := reference_in(content):
                self._start(self._drop([key]))
            return 1
        outcome = decode_outcome(content, sent.lane.lane, self._uplink.files.take)
        if isinstance(outcome, Reference):
            if outcome.is_last:
                sent.stream_id = None  # it is in its stream no more, and not lost
            self._start(self._fetch(sent, outcome.key))
        else:
            sent.lane.answered(sent, outcome)
        return sent.entry.request.merged

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    async def _fetch(self, sent: Sent, key: str) -> None:
        """Fetches an outcome that was too large for the list, as often as it takes."""
        while True:
            try:
                async with self._reading.of(await length_of(self._redis, key)):
                    if sent.entry.dead:
                        break
                    outcome = await load_outcome(self._redis, key, sent.lane.lane)
            except RedisError:
                if sent.entry.dead:
                    break
                await asyncio.sleep(RETRY_S)
                continue
            sent.lane.answered(sent, outcome or _vanished(sent))
            break
        await self._drop([key])

    async def _drop(self, keys: list[str]) -> None:
        """Deletes large outcomes that were fetched or abandoned."""
        with contextlib.suppress(RedisError):  # then they are forgotten a little later
            trip = self._redis.trip()
            trip.add("UNLINK", *keys)
            trip.add("ZREM", self._large_replies, *keys)
            await trip.execute()

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                await self._alive_script(self._redis, (self._alive,), ALIVE_S)
            except RedisError as error:
                self._record_trip(error)
            else:
                self._record_trip(None)
            await asyncio.sleep(HEARTBEAT_EVERY_S)

    async def _look_for_lost(self) -> None:
        while True:
            await asyncio.sleep(LOOK_FOR_LOST_EVERY_S)
            self._uplink.files.sweep(self._uplink.unanswered)
            for lane in {sent.lane for sent in self._uplink.unanswered.values()}:
                if self.up:
                    lane.report_read_again()
                    with contextlib.suppress(RedisError):
                        await lane.send_lost_again()

    async def _leave(self) -> None:
        """Aborts all work in flight."""
        for fetching in list(self._fetching):
            fetching.cancel()
        with contextlib.suppress(RedisError):
            await self._redis.send("DEL", self._alive, self._replies)
        await self._redis.close()
        await self._blocking.close()
        self._uplink.files.close()


def _vanished(sent: Sent) -> ServingError:
    return ServingError(
        f"the answer to request '{sent.entry.request.request_id}' was too large for the queue's "
        "list and has expired beside it; give Redis more memory or the request more time"
    )
