"""The worker's end of a queue on Redis.

In: requests on the streams of the lanes that are open here. Out: the same requests in this
process's own queue, and their outcomes on the lists of the gateways that sent them.

Rules:
- a request leaves its stream only after its outcome has been delivered: another worker claims the
  requests of a worker that died, so they may run twice;
- requests of a gateway that has died are dropped;
- outcomes wait for as long as Redis is unreachable.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from redis.exceptions import NoScriptError, RedisError

from model_store.tensors import TensorError
from services.errors import DeadlineExceededError
from services.queueing.lane_queue import WorkerIntake
from services.queueing.memory_queue import MemoryQueue, Outcome
from services.queueing.records import InferReply, Lane
from services.queueing.redis_streams.clients import RedisClients, Trip
from services.queueing.redis_streams.downlink import CLOGGED_BYTES, Downlink, Held, LaneLoad
from services.queueing.redis_streams.keys import (
    CANCELLED_CHANNELS,
    GROUP,
    JOB,
    NOBODY,
    JobKeys,
    LaneKeys,
    alive_key,
    large_replies_key,
    large_reply_key,
    replies_key,
)
from services.queueing.redis_streams.large_records import Places, leave
from services.queueing.redis_streams.receiving_lane import LINGER_S, RETRY_S, ReceivingLane
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.sender import NUMBER
from services.queueing.redis_streams.sending_lane import AT_ONCE_BYTES
from services.queueing.redis_streams.wire import (
    Piece,
    WireError,
    encode_outcome,
    encode_reference,
    is_large,
    reply_pieces,
)
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.queue")

KEEP_EVERY_S = 1.0
FORGET_AFTER_LOOKS = 600
"""A gateway that has been gone for so many looks, about a second each, has left nothing."""
REPLIES_LIVE_S = 60
"""Expiry of outcomes that no gateway fetches."""
LARGE_REPLIES_BYTES = 128 * 2**20
"""Of large outcomes that one gateway has not fetched."""
FETCHED_WITHIN_S = 10.0
LOOK_FOR_ROOM_S = 0.05
JOB_OUTCOMES_LIVE_S = 3600
"""Large ones, until the job is said to be over: Redis may be out of reach meanwhile."""


class RedisReceiver:
    """Receives requests for the lanes of one worker process.

    Args:
        clients: of the Redis that the gateways write to.
        worker: a name no other process has, without blanks.
        queue: this process's own, where the requests wait for a batch.
        metrics: of the process.
    """

    def __init__(
        self, clients: RedisClients, worker: str, queue: MemoryQueue, metrics: Metrics
    ) -> None:
        self._clients = clients
        self._redis = clients.open()
        self._queue = queue
        self._downlink = Downlink(
            redis=self._redis,
            worker=worker,
            queue=queue,
            answer=self._answer,
            metrics=metrics,
            outage=clients.outage,
        )
        self._answer_script, self._finish_job = Script("answer"), Script("finish_job")
        self._lanes: dict[str, ReceivingLane] = {}
        """By the channel of cancelled requests; two of each lane: requests and jobs."""
        self._keep_pieces, self._take_room = Script("keep_pieces"), Script("take_room")
        self._attempts = itertools.count(1)
        self._writing = Places()
        self._outbox: list[tuple[Held, bytes]] = []
        self._done: list[Held] = []
        """Answered, and still in their streams."""
        self._trip: asyncio.Task[None] | None = None
        self._tasks = asyncio.TaskGroup()
        self._closing: dict[Lane, Callable[[], None]] = {}
        self._look = asyncio.Event()
        """Set when there may be something to take over."""
        self._quiet = asyncio.Event()
        """Set when a lane or a trip has ended."""
        self._draining = False

    def open(self, lane: Lane, intake: WorkerIntake) -> None:
        """Admits requests for a lane, from all gateways."""
        self._queue.open(lane, intake)
        self._downlink.metrics.expect_stream(lane.model, lane.version)
        for jobs in (False, True):
            keys = LaneKeys(lane, jobs)
            receiving = ReceivingLane(self._downlink, lane, keys, intake)
            self._lanes[keys.cancelled] = receiving
            if self._draining:  # it was being loaded
                receiving.hand_back()
            self._tasks.create_task(self._run_lane(receiving), name=f"queue of {lane}")

    def close(self, lane: Lane, closed: Callable[[], None]) -> None:
        """Lets no more in, as soon as the gateways have heard that the lane leaves.

        Args:
            lane: which; it has been withdrawn from the directory.
            closed: called when nothing more will come.
        """
        open_ones = [receiving for receiving in self._lanes.values() if receiving.lane == lane]
        if not open_ones:  # it has been handed back
            closed()
            return
        self._closing[lane] = closed
        for receiving in open_ones:
            receiving.leave_in(LINGER_S)

    def serves(self, lane: Lane) -> bool:
        """Returns True if requests for a lane may arrive."""
        receiving = self._lanes.get(LaneKeys(lane).cancelled)
        return receiving is not None and receiving.serving

    def loads(self, *, jobs: bool) -> dict[Lane, LaneLoad]:
        """Returns the load of the open lanes by requests, or jobs, as of a second ago."""
        return {
            receiving.lane: receiving.load
            for receiving in self._lanes.values()
            if receiving.keys.jobs is jobs
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves open lanes inside the context; survives any fault of Redis."""
        try:
            async with self._tasks:
                chores = [
                    self._tasks.create_task(self._keep()),
                    self._tasks.create_task(self._hear_cancels()),
                ]
                yield
                for chore in chores:
                    chore.cancel()
        finally:
            await self._redis.close()

    async def drain(self) -> None:
        """Stops taking requests, returns those not begun to other workers, answers the rest."""
        self._draining = True
        for receiving in self._lanes.values():
            receiving.hand_back()
        while self._lanes or self._downlink.leaving_bytes or self._trip is not None:
            self._quiet.clear()
            await self._quiet.wait()

    def abandon(self) -> None:
        """Ends the drain: requests not yet in this process's own queue go to other workers."""
        for receiving in self._lanes.values():
            receiving.abandon()

    async def _run_lane(self, receiving: ReceivingLane) -> None:
        lane, blocking = receiving.lane, self._clients.open_blocking()
        try:
            await receiving.run(blocking)
        finally:
            await blocking.close()
        del self._lanes[receiving.keys.cancelled]
        if not any(other.lane == lane for other in self._lanes.values()):
            self._queue.close(lane)
            self._closing.pop(lane, _nothing)()
        self._quiet.set()

    async def _keep(self) -> None:
        """Sends heartbeats of this worker, and claims the requests of dead ones, in a loop."""
        while True:
            await self._keep_each(
                self._look_for_gone_gateways,
                *(receiving.keep for receiving in list(self._lanes.values())),
            )
            for receiving in list(self._lanes.values()):
                receiving.cancel_gone()
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_EVERY_S):
                    await self._look.wait()

    async def _keep_each(self, *duties: Callable[[], Awaitable[None]]) -> None:
        """Does each of some duties, whatever becomes of the others: in a cluster one may fail."""
        for duty in duties:
            try:
                await duty()
            except RedisError as error:
                self._downlink.silent_at = time.monotonic()
                self._clients.outage.failed(error)

    async def _look_for_gone_gateways(self) -> None:
        gateways = self._downlink.gateways
        if not gateways:
            return
        trip = self._redis.trip()
        asked = list(gateways)
        for gateway in asked:
            trip.add("EXISTS", alive_key(gateway))
        for gateway, there in zip(asked, await trip.execute(), strict=True):
            gateways[gateway] = 0 if there else gateways[gateway] + 1
            if gateways[gateway] > FORGET_AFTER_LOOKS:
                del gateways[gateway]

    async def _hear_cancels(self) -> None:
        """Drops cancelled requests; one whose message is lost still runs."""
        while True:
            try:
                async with self._clients.subscribed(CANCELLED_CHANNELS) as messages:
                    async for channel, data in messages:
                        receiving = self._lanes.get(channel)
                        if receiving is not None:
                            _cancel_all(receiving, data)
            except RedisError:
                await asyncio.sleep(RETRY_S)

    def _answer(self, held: Held, outcome: Outcome | None) -> None:
        """Hands an outcome over, with all others of this turn of the loop."""
        held.state = _state_of(outcome)
        if held.gateway == JOB and outcome is not None:
            lane = held.lane.lane
            labels = (lane.model, str(lane.version), held.state)
            self._downlink.metrics.finished_jobs.labels(*labels).inc()
        if held.suspect:
            self._look.set()  # there may be another
        try:
            if outcome is None or held.gateway == NOBODY:
                self._send(held, b"")
            elif isinstance(outcome, InferReply) and is_large(outcome.outputs):
                self._count_leaving(held, _bytes_of(outcome))
                self._tasks.create_task(self._leave(held, outcome))
            else:
                self._send(held, encode_outcome(outcome))
        except (TensorError, TypeError) as error:
            self._send_unwritable(held, error)

    def _send_unwritable(self, held: Held, error: Exception) -> None:
        """Answers with an error in place of outputs that are none of the protocol's."""
        held.state = "failed"
        words = f"the answer of model {held.lane.lane} cannot be written: {error}"
        self._send(held, encode_outcome(WireError(words)))

    def _send(self, held: Held, data: bytes) -> None:
        """Hands over what travels of an outcome; nothing only lets its request go."""
        self._outbox.append((held, data))
        if self._trip is None:
            self._trip = asyncio.get_running_loop().create_task(self._travel())

    async def _leave(self, held: Held, reply: InferReply) -> None:
        """Leaves a large outcome under a key of its own, as often as it takes; then hands it over.

        A key is never written twice: what another attempt left there would be part of it.
        """
        is_job, size, failed = held.gateway == JOB, _bytes_of(reply), list[str]()
        while not held.outcome_key:
            attempt = f"{self._downlink.worker}-{next(self._attempts)}"
            if is_job:
                key = JobKeys(held.lane.lane.model).outcome(held.number, attempt)
            else:
                key = large_reply_key(held.gateway, held.number, attempt)
            lives_s = JOB_OUTCOMES_LIVE_S if is_job else REPLIES_LIVE_S
            try:
                if not is_job:
                    await self._wait_for_room(held.gateway, key, size)
                async with self._writing.of(size):
                    await leave(reply_pieces(reply), lives_s * 1000, partial(self._push, key))
                if failed:
                    await self._redis.send("UNLINK", *failed)
            except RedisError as error:
                failed.append(key)
                self._clients.outage.failed(error)
                await asyncio.sleep(RETRY_S)
            except TensorError as error:
                self._send_unwritable(held, error)
                break
            else:
                held.outcome_key = key
                self._send(held, encode_reference(key))
        self._count_leaving(held, -size)

    async def _wait_for_room(self, gateway: str, key: str, size: int) -> None:
        """Waits while a gateway has large outcomes to fetch; Redis has to keep them meanwhile.

        After `FETCHED_WITHIN_S` it is left all the same: the gateway may be slow.
        """
        give_up_at = time.monotonic() + FETCHED_WITHIN_S
        keys = (large_replies_key(gateway), key)
        while not await self._take_room(
            self._redis, keys, size, LARGE_REPLIES_BYTES, REPLIES_LIVE_S
        ):
            if time.monotonic() > give_up_at or self._downlink.is_gone(gateway):
                return
            await asyncio.sleep(LOOK_FOR_ROOM_S)

    async def _push(self, key: str, pieces: list[Piece], lives_ms: int) -> None:
        await self._keep_pieces(self._redis, (key,), lives_ms, *pieces)

    def _count_leaving(self, held: Held, size: int) -> None:
        """Counts bytes of a large outcome that is on its way, or no longer."""
        held.lane.count_leaving(held, size)
        self._downlink.leaving_bytes += size
        if size > 0:
            self._downlink.room.charge(held.lane.lane, size)
        else:
            self._downlink.room.give(held.lane.lane, -size)
            for receiving in self._lanes.values():
                receiving.look_again()

    async def _travel(self) -> None:
        try:
            while self._outbox or self._done:
                outbox = self._pack()
                done, self._done = self._done, []
                try:
                    self._done = await self._hand_over(outbox, done)
                except RedisError as error:
                    # Perhaps it was done, perhaps not: twice is harmless, never is not.
                    self._clients.outage.failed(error)
                    self._outbox = outbox + self._outbox
                    self._done = done
                    await asyncio.sleep(RETRY_S)
        finally:
            self._trip = None
            self._quiet.set()

    def _pack(self) -> list[tuple[Held, bytes]]:
        """Returns the next pipeline's outcomes: one, and more up to a limit of bytes."""
        count, room = 0, AT_ONCE_BYTES
        while count < len(self._outbox) and room > 0:
            room -= len(self._outbox[count][1])
            count += 1
        packed, self._outbox = self._outbox[:count], self._outbox[count:]
        self._downlink.is_clogged = sum(len(data) for _, data in self._outbox) > CLOGGED_BYTES
        return packed

    async def _hand_over(
        self, outbox: Sequence[tuple[Held, bytes]], done: Sequence[Held]
    ) -> list[Held]:
        """One trip: outcomes to where they belong, and what is over off its stream.

        A request may leave its stream only when its outcome is safe: in the same script, or, where
        a cluster may keep the two in different slots, with the next trip.

        Returns:
            What may leave its stream with the next trip.
        """
        calls: list[tuple[Script, list[str], list[object]]] = []
        to_gateways: dict[str, list[tuple[Held, bytes]]] = defaultdict(list)
        gone, later = list(done), []
        for held, data in outbox:
            if not data or held.gateway == NOBODY:
                gone.append(held)
            elif held.gateway == JOB:
                calls.append((self._finish_job, *_finish_call(held, data)))
            else:
                to_gateways[held.gateway].append((held, data))
                if not self._leaves_at_once(held):
                    later.append(held)
        for gateway, outcomes in to_gateways.items():
            leaving = [held for held, _ in outcomes if self._leaves_at_once(held)]
            calls.append((self._answer_script, *_answer_call(gateway, outcomes, leaving)))
        if len(calls) == 1 and not gone:
            script, keys, arguments = calls[0]
            await script(self._redis, keys, *arguments)
            return later
        trip = self._redis.trip()
        for script, keys, arguments in calls:
            script.add(trip, keys, *arguments)
        _let_go(trip, gone)
        results = await trip.execute(raise_on_error=False)
        for (script, keys, arguments), result in zip(calls, results, strict=False):
            if isinstance(result, NoScriptError):
                await script(self._redis, keys, *arguments)
            elif isinstance(result, RedisError):
                raise result
        return later

    def _leaves_at_once(self, held: Held) -> bool:
        """Returns True if the script that delivers its outcome also removes the request."""
        return not (self._clients.has_slots or held.payload_key)


def _answer_call(
    gateway: str, outcomes: Sequence[tuple[Held, bytes]], leaving: Sequence[Held]
) -> tuple[list[str], list[object]]:
    """Keys and arguments of the script that hands outcomes to a gateway.

    Args:
        gateway: which.
        outcomes: and whose they are.
        leaving: those of them that leave their streams at once.
    """
    keys = [replies_key(gateway), *(held.stream_key for held in leaving)]
    listed = [NUMBER.pack(held.number) + data for held, data in outcomes]
    ids = [held.stream_id for held in leaving]
    return keys, [REPLIES_LIVE_S, GROUP, len(listed), *listed, *ids]


def _bytes_of(reply: InferReply) -> int:
    """The least size of an outcome; elements of BYTES count as references."""
    return sum(array.nbytes for array in reply.outputs.values())


def _state_of(outcome: Outcome | None) -> str:
    """Returns the state of a job with this outcome."""
    if isinstance(outcome, InferReply):
        return "done"
    return "expired" if isinstance(outcome, DeadlineExceededError) else "failed"


def _finish_call(held: Held, data: bytes) -> tuple[list[str], list[object]]:
    """Keys and arguments of the script that keeps the outcome of a job."""
    keys = JobKeys(held.lane.lane.model)
    payload_key = held.lane.keys.job_payload(held.number)
    found = [keys.job(held.number), keys.webhooks, held.stream_key, payload_key]
    if held.outcome_key:
        found.append(held.outcome_key)
    number = f"{held.number:016x}"
    return found, [number, held.state, data, keys.finished, GROUP, held.stream_id]


def _let_go(trip: Trip, done: Sequence[Held]) -> None:
    """Adds to a trip that requests leave their streams."""
    ids: dict[str, list[bytes]] = defaultdict(list)
    for held in done:
        ids[held.stream_key].append(held.stream_id)
        if held.payload_key:
            trip.add("UNLINK", held.payload_key)
    for stream, stream_ids in ids.items():
        trip.add("XACK", stream, GROUP, *stream_ids)
        trip.add("XDEL", stream, *stream_ids)


def _cancel_all(lane: ReceivingLane, addresses: bytes) -> None:
    for address in addresses.decode().split("\n"):
        gateway, _, number = address.rpartition(" ")
        lane.cancel(gateway, int(number))


def _nothing() -> None:
    """Callback for a close that needs none."""
