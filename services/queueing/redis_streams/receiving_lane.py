"""The worker's side of one lane: takes requests from its streams, runs and answers them.

Rules:
- a lane takes only the requests that run at once, and one batch more;
- the lowest priority is periodically served first, so that none starves;
- a request whose worker died while it held it is a suspect: it runs alone, and no other suspect
  beside it. When its worker dies again, it goes to the dead letters, and its caller gets an error;
- requests that are cancelled, or expired by Redis' clock, do not run.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from functools import partial

from redis.exceptions import RedisError, ResponseError

from services.errors import (
    DeadlineExceededError,
    ServingError,
    ShuttingDownError,
    UnsupportedError,
)
from services.queueing.lane_queue import WorkerIntake
from services.queueing.memory_queue import Outcome
from services.queueing.part_window import PartWindow
from services.queueing.records import InferReply, InferRequest, Lane
from services.queueing.redis_streams.clients import BLOCK_S, Commands
from services.queueing.redis_streams.dead_letters import Undertaker
from services.queueing.redis_streams.downlink import CLOGGED_BYTES, Downlink, Held, LaneLoad, Phase
from services.queueing.redis_streams.keys import GROUP, HANDED_BACK, JOB, NOBODY, LaneKeys
from services.queueing.redis_streams.large_records import find_request, load_request
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.wire import (
    NOTICE,
    WireError,
    decode_request,
    fields_of,
    is_request,
)

logger = logging.getLogger("flambeau.queue")

LOWEST_FIRST_EVERY = 8
"""Takes of which one begins with the lowest priority."""
COUNTS_FOR_S = 5
"""Time without a heartbeat after which a worker is dead."""
ABANDONED_S = COUNTS_FOR_S + 1
"""Time without renewal after which another worker claims a request. A worker that died counts as
dead by then, so its requests differ from those lost on their way to a live worker."""
MENTION_AFTER_S = 1.0
"""Age from which a held request is renewed in Redis."""
TAKE_OVER_AT_ONCE = 16
LINGER_S = 3.0
"""Time that a closing lane still admits requests: gateways must learn that it closes."""
RETRY_S = 0.2
"""Pause after a fault of Redis."""
STREAM_IS_GONE = ("NOGROUP", "UNBLOCKED")
"""Prefixes of the errors of a stream that Redis lost or a client deleted."""


class ReceivingLane:
    """The requests of one lane that this process holds.

    Args:
        downlink: state that all lanes of this process share.
        lane: which; it is open in the process's own queue.
        keys: of its requests, or of its jobs.
        intake: intake that runs the taken requests.
    """

    def __init__(
        self, downlink: Downlink, lane: Lane, keys: LaneKeys, intake: WorkerIntake
    ) -> None:
        self.lane = lane
        self.keys = keys
        self.streams = keys.streams if keys.jobs else (*keys.streams, keys.steps(downlink.worker))
        """The lane's, and at last the stream of steps whose sequences this worker owns."""
        self._phase = Phase.JOINING
        self._answering: Counter[Held] = Counter()
        """Requests whose large outcomes are being sent to Redis, with their bytes."""
        self.load = LaneLoad(0, 0, 0.0)
        self._is_in_redis = False
        """True if Redis is known to have the lane; it may lose it in any phase."""
        self._downlink = downlink
        self._intake = intake
        self._script_keys = (self.keys.workers, *self.streams)
        self._take_script, self._keep_script = Script("take"), Script("keep")
        self._leave_script, self._hand_back_script = Script("leave"), Script("hand_back")
        self._undertaker = Undertaker(downlink.redis, lane, keys, downlink.files)
        self._held: dict[tuple[str, int], Held] = {}
        self._given_up: list[Held] = []
        """Requests that were unfinished when the process had to end."""
        self._fetching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._takes = 0

    @property
    def serving(self) -> bool:
        """True if gateways may send requests."""
        return self._phase is Phase.SERVING

    async def run(self, blocking: Commands) -> None:
        """Takes requests until stopped, then waits until all held ones are answered.

        Args:
            blocking: a client of this lane's own.
        """
        took_all = False
        while self._phase is not Phase.HANDING_BACK:
            try:
                if not self._is_in_redis:
                    await self.keep()
                elif (room := self._room()) <= 0:
                    took_all = False
                    await self._wait_for_change()
                elif took_all or not await self._take(room):
                    if self._phase is Phase.LEAVING and await self._may_go():
                        break
                    most = await self._read(blocking, room, "BLOCK", int(BLOCK_S * 1000))
                    took_all = 0 < most < room
            except RedisError as error:
                took_all = False
                await self._recover(error)
        if self._phase is Phase.HANDING_BACK:
            with contextlib.suppress(RedisError):
                await self._may_go()
        while self._held:
            if self._phase is not Phase.HANDING_BACK or not await self._hand_back():
                await self._wait_for_change()
        await self._give(self._given_up)
        async with self._downlink.keeping:  # which would make the stream again
            self._phase = Phase.LEFT
            if not self.keys.jobs:  # steps that came meanwhile have no owner any more
                with contextlib.suppress(RedisError):
                    await self._downlink.redis.send("UNLINK", self.streams[-1])

    def leave_in(self, delay_s: float) -> None:
        """Stops after so long, once nothing is left that no other worker takes."""
        asyncio.get_running_loop().call_later(delay_s, self._leave)

    def hand_back(self) -> None:
        """Stops taking requests, and returns those not begun to other workers."""
        self._phase = Phase.HANDING_BACK
        self._changed.set()

    def abandon(self) -> None:
        """Returns requests not yet in this process's own queue to other workers."""
        for held in list(self._held.values()):
            if held.entry is None:
                self._forget(held)
                self._given_up.append(held)
        self._changed.set()

    def count_unwritten(self, held: Held, size: int) -> None:
        """The large outcome of a request is on its way, or with a negative size no longer."""
        self._answering[held] += size
        if not self._answering[held]:
            del self._answering[held]

    def look_again(self) -> None:
        """Something outside of the lane has changed: there may be room."""
        self._changed.set()

    def _forget(self, held: Held) -> bool:
        """Holds a request no longer. Returns whether it was held."""
        if self._held.pop((held.gateway, held.number), None) is None:
            return False
        self._downlink.room.give(self.lane, held.payload_bytes)
        held.payload_bytes = 0
        return True

    def notice(self, lines: bytes) -> None:
        """Handles a gateway's lines about its requests; see `LaneKeys.notices`.

        A request that is not held changes nothing.
        """
        for line in lines.decode(errors="replace").split("\n"):
            found = NOTICE.fullmatch(line)
            held = self._held.get((found[1], int(found[2]))) if found else None
            if held is None or found is None:
                continue
            if not found[3]:
                self._drop(held)
            elif isinstance(held.window, PartWindow):
                held.window.read_up_to(int(found[3]))

    def cancel_gone(self) -> None:
        """Drops requests of gateways that have died."""
        for held in list(self._held.values()):
            if self._downlink.is_gone(held.gateway):
                self._drop(held)

    async def keep(self) -> None:
        """Renews this worker's lane and held requests; claims abandoned ones.

        Raises:
            RedisError: Redis is out of reach.
        """
        async with self._downlink.keeping:
            if self._phase is not Phase.LEFT:
                await self._keep()

    async def _keep(self) -> None:
        downlink, now = self._downlink, time.monotonic()
        mentioned = [
            part
            for held in (*self._held.values(), *self._answering)
            if now - held.taken_at > MENTION_AFTER_S
            for part in (held.stream, held.stream_id)
        ]
        # After an outage of Redis all workers seem dead until they have renewed their heartbeats.
        unsure = now - downlink.silent_at < ABANDONED_S
        room = 0 if unsure or self._phase is Phase.HANDING_BACK else self._room()
        counts_us = COUNTS_FOR_S * 1_000_000 if self._phase.is_staying else 0
        now_us, length, taken, oldest, *over = await self._keep_script(
            downlink.redis, self._script_keys, GROUP, downlink.worker,
            counts_us, ABANDONED_S * 1000, HANDED_BACK,
            max(min(room, TAKE_OVER_AT_ONCE), 0), 0 if downlink.suspect else 1, self.keys.lives_s,
            *mentioned,
        )  # fmt: skip
        self._learn_clock(now_us)
        oldest_ms = int(oldest.partition(b"-")[0] or 0)
        oldest_s = max(int(now_us) / 1e6 - oldest_ms / 1000, 0.0) if oldest_ms else 0.0
        self.load = LaneLoad(length - taken, taken, oldest_s)
        self._is_in_redis = True
        if self._phase is Phase.JOINING:
            self._phase = Phase.SERVING
        self._changed.set()  # there may be room for jobs by now
        to_bury = []
        for stream, stream_id, flat, kind in over:
            fields = fields_of(flat)
            if kind == 2 and is_request(fields):
                to_bury.append((stream, stream_id, fields))
            else:
                self._accept(stream, stream_id, fields, suspect=kind == 1)
        for stream, stream_id, fields in to_bury:
            await self._bury(stream, stream_id, fields)

    def _room(self) -> int:
        """Returns the number of further requests that may be held."""
        intake = self._intake
        downlink = self._downlink
        if downlink.is_clogged or (self._answering and downlink.unwritten_bytes > CLOGGED_BYTES):
            return 0
        capacity = intake.background_capacity if self.keys.jobs else intake.capacity
        return capacity - len(self._held)

    def _learn_clock(self, now_us: bytes) -> None:
        self._downlink.clock_s = int(now_us) / 1e6 - time.monotonic()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _recover(self, error: RedisError) -> None:
        """After a fault of Redis: it may have come back without the lane."""
        self._is_in_redis = False
        if not (isinstance(error, ResponseError) and str(error).startswith(STREAM_IS_GONE)):
            self._downlink.outage.failed(error)
            await asyncio.sleep(RETRY_S)

    async def _take(self, room: int) -> bool:
        """Takes what is there. Returns whether anything was."""
        if len(self.streams) == 1:  # which the script would only copy
            return await self._read(self._downlink.redis, room) > 0
        self._takes += 1
        lowest_first = self._takes % LOWEST_FIRST_EVERY == 0
        streams = self.streams[::-1] if lowest_first else self.streams
        now_us, *taken = await self._take_script(
            self._downlink.redis, streams, GROUP, self._downlink.worker, room
        )
        self._learn_clock(now_us)
        for number, entries in taken:
            stream = len(streams) + 1 - number if lowest_first else number
            for stream_id, fields in entries:
                self._accept(stream, stream_id, fields_of(fields))
        return bool(taken)

    async def _read(self, redis: Commands, room: int, *how: object) -> int:
        """Takes at most so many of each stream. Returns how many that were of the fullest."""
        streams = self.streams
        found = await redis.send(
            "XREADGROUP", "GROUP", GROUP, self._downlink.worker, "COUNT", room, *how,
            "STREAMS", *streams, *(">" for _ in streams),
        )  # fmt: skip
        for stream, entries in found or ():
            number = streams.index(stream.decode()) + 1
            for stream_id, fields in entries:
                self._accept(number, stream_id, fields)
        return max((len(entries) for _, entries in found or ()), default=0)

    def _accept(
        self, stream: int, stream_id: bytes, fields: dict[bytes, bytes], suspect: bool = False
    ) -> None:
        """Puts a request into this process's own queue."""
        downlink = self._downlink
        if not is_request(fields):
            self._discard_foreign(stream, stream_id)
            return
        held = self._hold(stream, stream_id, fields, suspect)
        deadline = int(fields[b"deadline"]) / 1e6 - downlink.clock_s
        if downlink.is_gone(held.gateway):
            self._finish(held, None)
        elif deadline <= held.taken_at:
            self._finish(
                held, DeadlineExceededError("it reached its deadline before a worker had capacity")
            )
        else:
            self._submit(held, fields[b"payload"], deadline)

    def _discard_foreign(self, stream: int, stream_id: bytes) -> None:
        """Removes an entry that no gateway wrote: no worker could run or answer it."""
        facts = {"stream": self.streams[stream - 1], "stream_id": stream_id.decode()}
        logger.error("an entry of a stream is no request; removing it", extra=facts)
        held = Held(self, stream, stream_id, NOBODY, -1, time.monotonic(), suspect=False)
        self._downlink.answer(held, None)

    def _hold(
        self, stream: int, stream_id: bytes, fields: dict[bytes, bytes], suspect: bool
    ) -> Held:
        gateway, _, number = fields[b"address"].decode().rpartition(" ")
        held = Held(self, stream, stream_id, gateway, int(number), time.monotonic(), suspect)
        self._held[gateway, held.number] = held
        if gateway not in (JOB, NOBODY):
            self._downlink.gateways.setdefault(gateway, 0)
        if suspect:
            self._downlink.suspect = held
        return held

    def _submit(self, held: Held, payload: bytes, deadline: float) -> None:
        try:
            read = partial(self._downlink.files.read, held.gateway)
            request = decode_request(payload, self.lane, deadline, held.suspect, read)
        except WireError as error:
            self._finish(held, error)
            return
        if isinstance(request, str):
            task = asyncio.get_running_loop().create_task(self._fetch(held, request, deadline))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
            return
        held.entry = self._downlink.queue.submit(request, partial(self._take_reply, held))

    def _take_reply(self, held: Held, outcome: Outcome) -> None:
        """Handles a reply or an error; a job has exactly one reply."""
        if isinstance(outcome, InferReply) and not (outcome.is_last and outcome.outputs):
            if held.gateway in (JOB, NOBODY):
                words = (
                    f"model {self.lane} answers in several parts or in none, and a job takes one"
                )
                self.fail(held, UnsupportedError(words))
                return
            if not outcome.is_last:
                if self._is_held(held):
                    held.window = outcome.window
                    self._downlink.give(held, outcome)
                return
        self._finish(held, outcome)

    def fail(self, held: Held, error: ServingError) -> None:
        """Ends a request whose answer cannot be written."""
        if held.entry is not None:
            held.entry.cancel()
        self._finish(held, error)

    async def _fetch(self, held: Held, key: str, deadline: float) -> None:
        """Fetches a payload that was too large for the stream, once there is room for it."""
        held.payload_key = key
        while self._is_held(held):
            try:
                request = await self._load(held, key, deadline)
            except WireError as error:
                self._finish(held, error)
            except RedisError:
                if time.monotonic() > deadline:
                    self._finish(held, None)  # its gateway has answered it
                await asyncio.sleep(RETRY_S)
                continue
            else:
                if request is None:
                    self._finish(held, None)  # cancelled, or out of time
                elif self._is_held(held):  # else it was cancelled, or left to others
                    take = partial(self._take_reply, held)
                    held.entry = self._downlink.queue.submit(request, take)
            return

    async def _load(self, held: Held, key: str, deadline: float) -> InferRequest | None:
        """A large payload, which takes room from now on; None if it is gone.

        Raises:
            WireError: it cannot be read.
            RedisError: Redis is out of reach.
        """
        redis, room, reading = self._downlink.redis, self._downlink.room, self._downlink.reading
        if not held.payload_bytes:
            async with reading.of(0):  # an older version's is all here as it is found
                found = await find_request(redis, key, self.lane)
                size = found[1].held_bytes if found else 0
            if found is None:
                return None
            del found
            await room.take(self.lane, size)  # it holds no place meanwhile: others may have room
            if not self._is_held(held):
                room.give(self.lane, size)
                return None
            held.payload_bytes = size
        async with reading.of(held.payload_bytes):
            found = await find_request(redis, key, self.lane)
            if found is None:
                return None
            return await load_request(found, self.lane, deadline, alone=held.suspect)

    def _is_held(self, held: Held) -> bool:
        return self._held.get((held.gateway, held.number)) is held

    def _drop(self, held: Held) -> None:
        if held.entry is not None:
            held.entry.cancel()
        self._finish(held, None)

    def _finish(self, held: Held, outcome: Outcome | None) -> None:
        """Answers a request, or only lets it go; the first time it is called."""
        if not self._forget(held):
            return
        if self._downlink.suspect is held:
            self._downlink.suspect = None
        if held.gateway == JOB and isinstance(outcome, ShuttingDownError):
            self._given_up.append(held)  # it stays in its stream, for another worker
        else:
            self._downlink.answer(held, outcome)
        self._changed.set()

    async def _bury(self, stream: int, stream_id: bytes, fields: dict[bytes, bytes]) -> None:
        # Until that is done it is nobody's, and the next worker that looks buries it.
        error = await self._undertaker.bury(self.streams[stream - 1], stream_id, fields)
        self._downlink.metrics.dead_letters.labels(self.lane.model, str(self.lane.version)).inc()
        held = self._hold(stream, stream_id, fields, suspect=False)
        logger.error(
            "a request crashed two workers",
            extra={"model": self.lane.model, "version": self.lane.version,
                   "gateway": held.gateway, "stream_id": stream_id.decode()},
        )  # fmt: skip
        self._finish(held, error)

    def _leave(self) -> None:
        if self._phase is not Phase.HANDING_BACK:
            self._phase = Phase.LEAVING
        self._changed.set()

    async def _may_go(self) -> bool:
        """Leaves the lane. Returns whether nothing is left that only this worker would take."""
        others, left = await self._leave_script(
            self._downlink.redis, self._script_keys, self._downlink.worker
        )
        return bool(others) or not left

    async def _hand_back(self) -> bool:
        """Leaves to others what is in no batch yet. Returns whether there was anything.

        Steps of sequences stay: no other worker has their state.
        """
        plain = [h for h in self._held.values() if h.entry and not h.entry.request.sequence]
        given = [held for held in plain if held.entry and self._intake.release(held.entry)]
        for held in given:
            assert held.entry is not None
            held.entry.cancel()
            self._forget(held)  # it is mentioned no more
        await self._give(given)
        return bool(given)

    async def _give(self, given: list[Held]) -> None:
        """Leaves requests to others."""
        if not given:
            return
        names = [part for held in given for part in (held.stream, held.stream_id)]
        try:
            async with self._downlink.keeping:  # what is being mentioned would be ours again
                await self._hand_back_script(
                    self._downlink.redis, self.streams, GROUP, HANDED_BACK, *names
                )
        except RedisError as error:  # they are taken over a little later
            logger.error(
                "unfinished requests could not be returned to the queue",
                extra={"reason": str(error)},
            )
