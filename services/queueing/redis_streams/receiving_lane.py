"""One lane as a worker sees it: requests are taken from its streams, run here, and answered.

Rules kept here:
- no more is taken than runs at once, and one batch more;
- every so often the lowest priority is served first, so that none starves;
- a request whose worker died while it held it is a suspect: it runs alone, and no other suspect
  beside it. When its worker dies again, it goes to the dead letters, and its caller gets an error;
- what nobody waits for is not run: out of time by Redis' clock, or cancelled.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError, ResponseError

from services.errors import DeadLetterError, DeadlineExceededError, ShuttingDownError
from services.queueing.lane_queue import WorkerIntake
from services.queueing.memory_queue import Entry, MemoryQueue, Outcome
from services.queueing.records import Lane
from services.queueing.redis_streams.clients import BLOCK_S, Commands
from services.queueing.redis_streams.keys import GROUP, HANDED_BACK, JOB, NOBODY, LaneKeys
from services.queueing.redis_streams.outage import Outage
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.wire import WireError, decode_request
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.queue")

LOWEST_FIRST_EVERY = 8
"""Of so many takes, one begins with the lowest priority."""
COUNTS_FOR_S = 5
"""A worker that has said nothing for so long is dead."""
ABANDONED_S = COUNTS_FOR_S + 1
"""What its worker has not mentioned for so long is another's. A worker that died counts as dead by
then, so that what was lost on its way to a living one can be told from it."""
GONE_AFTER_LOOKS = 3
MENTION_AFTER_S = 1.0
"""What a worker holds for longer is mentioned."""
TAKE_OVER_AT_ONCE = 16
MAX_DEAD_LETTERS = 1000
DEAD_LETTERS_LIVE_S = 7 * 86_400
LINGER_S = 3.0
"""How long a lane that closes still lets requests in: gateways must hear that it leaves."""
RETRY_S = 0.2
"""Pause after a fault of Redis."""
STREAM_IS_GONE = ("NOGROUP", "UNBLOCKED")
"""How the errors begin that say so: Redis has forgotten, or somebody has deleted."""


@dataclass(slots=True, eq=False)
class Held:
    """A request that was taken from its stream and has not been answered.

    Attributes:
        stream: the number of its stream; 1 is the lane's first.
        gateway: who asked for it.
        number: what the gateway calls it.
        taken_at: `time.monotonic()` second.
        suspect: whether it runs alone, because a worker died with it.
        payload_key: where its payload lies, if it is large.
        state: of a job, once it is over.
        entry: in this process's own queue.
    """

    lane: "ReceivingLane"
    stream: int
    stream_id: bytes
    gateway: str
    number: int
    taken_at: float
    suspect: bool
    payload_key: str = ""
    state: str = ""
    entry: Entry | None = None

    @property
    def stream_key(self) -> str:
        """The name of its stream."""
        return self.lane.keys.streams[self.stream - 1]


@dataclass(slots=True, kw_only=True)
class Downlink:
    """What the lanes of one worker share.

    Attributes:
        redis: for commands that do not block.
        worker: its name.
        queue: its own, where the requests wait for a batch.
        answer: hands an outcome over and lets the request go; None only lets it go.
        clock_s: Redis' clock less `time.monotonic()`, as far as is known.
        gateways: those that were heard of, and how often in a row they did not seem alive.
        metrics: of the process.
        outage: told of faults of Redis.
        suspect: the one that runs, if any.
        silent_at: when Redis did not answer last; a `time.monotonic()` second.
        is_clogged: whether more outcomes wait to be handed over than can be kept here.
        keeping: held by the lane that mentions what it holds and takes over what others left (only
            one suspect runs), or that leaves something to others.
    """

    redis: Commands
    worker: str
    queue: MemoryQueue
    answer: Callable[[Held, Outcome | None], None]
    metrics: Metrics
    outage: Outage
    clock_s: float = 0.0
    gateways: dict[str, int] = field(default_factory=dict)
    suspect: Held | None = None
    silent_at: float = -math.inf
    is_clogged: bool = False
    keeping: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_gone(self, gateway: str) -> bool:
        """Whether a gateway has died: one look is not enough, for Redis may have forgotten it."""
        return self.gateways.get(gateway, 0) >= GONE_AFTER_LOOKS


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """How a lane stands, in Redis as a whole."""

    waiting: int
    """Requests that no worker has taken."""
    taken: int
    """Requests that workers have taken and not answered."""
    oldest_s: float
    """The age of the oldest; 0 when there is none."""


class ReceivingLane:
    """The requests of one lane that this process holds.

    Args:
        downlink: what all lanes of this process share.
        lane: which; it is open in the process's own queue.
        keys: of its requests, or of its jobs.
        intake: who runs what is taken.
    """

    def __init__(
        self, downlink: Downlink, lane: Lane, keys: LaneKeys, intake: WorkerIntake
    ) -> None:
        self.lane = lane
        self.keys = keys
        self.serving = False
        """Whether gateways may send requests, because Redis knows of this worker."""
        self.load = LaneLoad(0, 0, 0.0)
        self._known = False
        """Whether Redis knows of the lane, as far as was heard."""
        self._downlink = downlink
        self._intake = intake
        self._script_keys = (self.keys.workers, *self.keys.streams)
        self._take_script, self._keep_script = Script("take"), Script("keep")
        self._leave_script, self._hand_back_script = Script("leave"), Script("hand_back")
        self._bury_script = Script("bury")
        self._held: dict[tuple[str, int], Held] = {}
        self._given_up: list[Held] = []
        """What was not done when the process had to end."""
        self._fetching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._takes = 0
        self._leaving = False
        self._handing_back = False

    async def run(self, blocking: Commands) -> None:
        """Takes requests until told to stop, then waits until all it holds are answered.

        Args:
            blocking: a client of this lane's own.
        """
        took_all = False
        while not self._handing_back:
            try:
                if not self._known:
                    await self.keep()
                elif (room := self._room()) <= 0:
                    took_all = False
                    await self._wait_for_change()
                elif took_all or not await self._take(room):
                    if self._leaving and await self._may_go():
                        break
                    most = await self._read(blocking, room, "BLOCK", int(BLOCK_S * 1000))
                    took_all = 0 < most < room
            except RedisError as error:
                took_all = False
                await self._recover(error)
        if self._handing_back:
            with contextlib.suppress(RedisError):
                await self._may_go()
        while self._held:
            if not self._handing_back or not await self._hand_back():
                await self._wait_for_change()
        await self._give(self._given_up)

    def leave_in(self, delay_s: float) -> None:
        """Stops after so long, once nothing is left that no other worker takes."""
        asyncio.get_running_loop().call_later(delay_s, self._leave)

    def hand_back(self) -> None:
        """Takes nothing more, and leaves to others what has not begun."""
        self._leaving = self._handing_back = True
        self._changed.set()

    def abandon(self) -> None:
        """Leaves to others what has not reached this process's own queue."""
        for key, held in list(self._held.items()):
            if held.entry is None:
                self._given_up.append(self._held.pop(key))
        self._changed.set()

    def cancel(self, gateway: str, number: int) -> None:
        """Nobody waits for a request any more; one that is not here changes nothing."""
        held = self._held.get((gateway, number))
        if held is not None:
            self._drop(held)

    def cancel_gone(self) -> None:
        """Drops what gateways asked for that have died."""
        for held in list(self._held.values()):
            if self._downlink.is_gone(held.gateway):
                self._drop(held)

    async def keep(self) -> None:
        """Says that this worker serves the lane and what it holds; takes over what others left.

        Raises:
            RedisError: Redis is out of reach.
        """
        async with self._downlink.keeping:
            await self._keep()

    async def _keep(self) -> None:
        downlink, now = self._downlink, time.monotonic()
        mentioned = [
            part
            for held in self._held.values()
            if now - held.taken_at > MENTION_AFTER_S
            for part in (held.stream, held.stream_id)
        ]
        # Where nobody was heard for a while, all seem dead until they have had time to speak.
        unsure = now - downlink.silent_at < ABANDONED_S
        room = 0 if unsure or self._handing_back else self._room()
        now_us, length, taken, oldest, *over = await self._keep_script(
            downlink.redis, self._script_keys, GROUP, downlink.worker,
            0 if self._leaving else COUNTS_FOR_S * 1_000_000, ABANDONED_S * 1000, HANDED_BACK,
            max(min(room, TAKE_OVER_AT_ONCE), 0), 0 if downlink.suspect else 1, self.keys.lives_s,
            *mentioned,
        )  # fmt: skip
        self._heard_time(now_us)
        oldest_ms = int(oldest.partition(b"-")[0] or 0)
        oldest_s = max(int(now_us) / 1e6 - oldest_ms / 1000, 0.0) if oldest_ms else 0.0
        self.load = LaneLoad(length - taken, taken, oldest_s)
        self._known, self.serving = True, not self._leaving
        self._changed.set()  # there may be room for jobs by now
        to_bury = []
        for stream, stream_id, flat, kind in over:
            fields = _fields(flat)
            if kind == 2:
                to_bury.append((stream, stream_id, fields))
            else:
                self._accept(stream, stream_id, fields, suspect=kind == 1)
        for stream, stream_id, fields in to_bury:
            await self._bury(stream, stream_id, fields)

    def _room(self) -> int:
        """How many more may be held."""
        intake = self._intake
        if self._downlink.is_clogged:
            return 0
        capacity = intake.spare_capacity if self.keys.jobs else intake.capacity
        return capacity - len(self._held)

    def _heard_time(self, now_us: bytes) -> None:
        self._downlink.clock_s = int(now_us) / 1e6 - time.monotonic()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _recover(self, error: RedisError) -> None:
        """After a fault of Redis: it may have come back without the lane."""
        self._known = False
        if not (isinstance(error, ResponseError) and str(error).startswith(STREAM_IS_GONE)):
            self._downlink.outage.failed(error)
            await asyncio.sleep(RETRY_S)

    async def _take(self, room: int) -> bool:
        """Takes what is there. Returns whether anything was."""
        if len(self.keys.streams) == 1:  # which the script would only copy
            return await self._read(self._downlink.redis, room) > 0
        self._takes += 1
        lowest_first = self._takes % LOWEST_FIRST_EVERY == 0
        streams = self.keys.streams[::-1] if lowest_first else self.keys.streams
        now_us, *taken = await self._take_script(
            self._downlink.redis, streams, GROUP, self._downlink.worker, room
        )
        self._heard_time(now_us)
        for number, entries in taken:
            stream = len(streams) + 1 - number if lowest_first else number
            for stream_id, fields in entries:
                self._accept(stream, stream_id, _fields(fields))
        return bool(taken)

    async def _read(self, redis: Commands, room: int, *how: object) -> int:
        """Takes at most so many of each stream. Returns how many that were of the fullest."""
        streams = self.keys.streams
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
        held = self._hold(stream, stream_id, fields, suspect)
        deadline = int(fields[b"deadline"]) / 1e6 - downlink.clock_s
        if downlink.is_gone(held.gateway):
            self._finish(held, None)
        elif deadline <= held.taken_at:
            self._finish(held, DeadlineExceededError("it ran out of time before a worker had room"))
        else:
            self._submit(held, fields[b"payload"], deadline)

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
            request = decode_request(payload, self.lane, deadline, alone=held.suspect)
        except WireError as error:
            self._finish(held, error)
            return
        if isinstance(request, str):
            task = asyncio.get_running_loop().create_task(self._fetch(held, request, deadline))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
            return
        held.entry = self._downlink.queue.submit(request, lambda out: self._finish(held, out))

    async def _fetch(self, held: Held, key: str, deadline: float) -> None:
        """Fetches a payload that was too large for the stream."""
        while True:
            try:
                payload = await self._downlink.redis.fetch(key)
            except RedisError:
                if time.monotonic() > deadline:
                    self._finish(held, None)  # its gateway has answered it
                    return
                await asyncio.sleep(RETRY_S)
                continue
            if self._held.get((held.gateway, held.number)) is not held:
                return  # it was cancelled, or left to others
            if payload is None:
                self._finish(held, None)  # cancelled, or out of time: it lies as long as it has
            else:
                held.payload_key = key
                self._submit(held, payload, deadline)
            return

    def _drop(self, held: Held) -> None:
        if held.entry is not None:
            held.entry.cancel()
        self._finish(held, None)

    def _finish(self, held: Held, outcome: Outcome | None) -> None:
        """Answers a request, or only lets it go; the first time it is called."""
        if self._held.pop((held.gateway, held.number), None) is None:
            return
        if self._downlink.suspect is held:
            self._downlink.suspect = None
        if held.gateway == JOB and isinstance(outcome, ShuttingDownError):
            self._given_up.append(held)  # it stays in its stream, for another worker
            self._changed.set()
            return
        self._downlink.answer(held, outcome)
        self._changed.set()

    async def _bury(self, stream: int, stream_id: bytes, fields: dict[bytes, bytes]) -> None:
        error = DeadLetterError(
            f"this request to model {self.lane} was running when two workers died, the second "
            "time alone; it is kept among the dead letters (flambeau queue dead list)"
        )
        keys = [self.keys.streams[stream - 1], self.keys.dead]
        with contextlib.suppress(WireError):
            request = decode_request(fields[b"payload"], self.lane, 0.0, alone=True)
            keys += [request] if isinstance(request, str) else []
        # Until that is done it is nobody's, and the next worker that looks buries it.
        await self._bury_script(
            self._downlink.redis, keys, GROUP, stream_id, str(error),
            MAX_DEAD_LETTERS, DEAD_LETTERS_LIVE_S,
        )  # fmt: skip
        self._downlink.metrics.dead_letters.labels(self.lane.model, str(self.lane.version)).inc()
        held = self._hold(stream, stream_id, fields, suspect=False)
        logger.error(
            "a request ended two workers",
            extra={"model": self.lane.model, "version": self.lane.version,
                   "gateway": held.gateway, "stream_id": stream_id.decode()},
        )  # fmt: skip
        self._finish(held, error)

    def _leave(self) -> None:
        self._leaving = True
        self._changed.set()

    async def _may_go(self) -> bool:
        """Leaves the lane. Returns whether nothing is left that only this worker would take."""
        self.serving = False
        others, left = await self._leave_script(
            self._downlink.redis, self._script_keys, self._downlink.worker
        )
        return bool(others) or not left

    async def _hand_back(self) -> bool:
        """Leaves to others what is in no batch yet. Returns whether there was anything."""
        given = [h for h in self._held.values() if h.entry and self._intake.release(h.entry)]
        for held in given:
            assert held.entry is not None
            held.entry.cancel()
            del self._held[held.gateway, held.number]  # it is mentioned no more
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
                    self._downlink.redis, self.keys.streams, GROUP, HANDED_BACK, *names
                )
        except RedisError as error:  # they are taken over a little later
            logger.error("what was not done could not be handed back", extra={"reason": str(error)})


def _fields(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
