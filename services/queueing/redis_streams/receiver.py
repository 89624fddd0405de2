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
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from redis.exceptions import RedisError

from services.queueing.host_files import HostFiles
from services.queueing.lane_queue import WorkerIntake
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.downlink import Downlink, LaneLoad
from services.queueing.redis_streams.keys import (
    NOTICE_CHANNELS,
    LaneKeys,
    alive_key,
)
from services.queueing.redis_streams.outcome_delivery import OutcomeDelivery
from services.queueing.redis_streams.receiving_lane import LINGER_S, RETRY_S, ReceivingLane
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.queue")

KEEP_EVERY_S = 1.0
FORGET_AFTER_LOOKS = 600
"""Checks, about one a second, after which a dead gateway is forgotten: it has no requests left."""


class RedisReceiver:
    """Receives requests for the lanes of one worker process.

    Args:
        clients: of the Redis that the gateways write to.
        worker: unique name of the process, without blanks.
        queue: queue of this process, where the requests wait for a batch.
        metrics: metrics of the process.
        files: of this host, under the worker's name; None to answer through Redis alone.
    """

    def __init__(
        self,
        clients: RedisClients,
        worker: str,
        queue: MemoryQueue,
        metrics: Metrics,
        files: HostFiles | None = None,
    ) -> None:
        self._clients = clients
        self._redis = clients.open()
        self._queue = queue
        self._downlink = Downlink(
            redis=self._redis, worker=worker, queue=queue, metrics=metrics, outage=clients.outage,
            files=files or HostFiles(),
        )  # fmt: skip
        self._lanes: dict[str, ReceivingLane] = {}
        """By the channel of their notices; two of each lane: requests and jobs."""
        self._tasks = asyncio.TaskGroup()
        self._closing: dict[Lane, Callable[[], None]] = {}
        self._delivery = OutcomeDelivery(clients, self._downlink, self._tasks, self._has_room)
        self._draining = False

    @property
    def max_depth(self) -> int:
        """Most entries that may wait for one lane in this process."""
        return self._queue.max_depth

    def open(self, lane: Lane, intake: WorkerIntake) -> None:
        """Admits requests for a lane, from all gateways."""
        self._queue.open(lane, intake)
        self._downlink.metrics.expect_stream(lane.model, lane.version)
        for jobs in (False, True):
            keys = LaneKeys(lane, jobs)
            receiving = ReceivingLane(self._downlink, lane, keys, intake)
            self._lanes[keys.notices] = receiving
            if self._draining:  # it was being loaded
                receiving.hand_back()
            self._tasks.create_task(self._run_lane(receiving), name=f"queue of {lane}")

    def close(self, lane: Lane, closed: Callable[[], None]) -> None:
        """Stops admission once the gateways know that the lane closes.

        Args:
            lane: a lane that has been withdrawn from the directory.
            closed: callback after the last request.
        """
        open_ones = [receiving for receiving in self._lanes.values() if receiving.lane == lane]
        if not open_ones:  # its requests were returned
            closed()
            return
        self._closing[lane] = closed
        for receiving in open_ones:
            receiving.leave_in(LINGER_S)

    def serves(self, lane: Lane) -> bool:
        """Returns True if requests for a lane may arrive."""
        receiving = self._lanes.get(LaneKeys(lane).notices)
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
                loops = [
                    self._tasks.create_task(self._keep()),
                    self._tasks.create_task(self._receive_notices()),
                ]
                yield
                for loop in loops:
                    loop.cancel()
        finally:
            await self._redis.close()
            self._downlink.files.close()

    async def drain(self) -> None:
        """Stops taking requests, returns those not begun to other workers, answers the rest."""
        self._draining = True
        for receiving in self._lanes.values():
            receiving.hand_back()
        while self._lanes or self._downlink.unwritten_bytes or self._delivery.is_under_way:
            self._downlink.quiet.clear()
            await self._downlink.quiet.wait()

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
        del self._lanes[receiving.keys.notices]
        if not any(other.lane == lane for other in self._lanes.values()):
            self._queue.close(lane)
            self._closing.pop(lane, _nothing)()
        self._downlink.quiet.set()

    def _has_room(self) -> None:
        """Handles the end of a large outcome: lanes may take more."""
        for receiving in self._lanes.values():
            receiving.look_again()

    async def _keep(self) -> None:
        """Sends heartbeats of this worker, and claims the requests of dead ones, in a loop."""
        while True:
            await self._keep_each(
                self._look_for_gone_gateways,
                *(receiving.keep for receiving in list(self._lanes.values())),
            )
            for receiving in list(self._lanes.values()):
                receiving.cancel_gone()
            self._downlink.files.sweep()
            self._downlink.look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_EVERY_S):
                    await self._downlink.look.wait()

    async def _keep_each(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """Runs each step although another may fail: in a cluster one node may be unreachable."""
        for step in steps:
            try:
                await step()
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

    async def _receive_notices(self) -> None:
        """Drops cancelled requests, and widens windows of parts.

        A request whose cancellation is lost still runs; the number of parts read is sent again.
        """
        while True:
            try:
                async with self._clients.subscribed(NOTICE_CHANNELS) as messages:
                    async for channel, data in messages:
                        receiving = self._lanes.get(channel)
                        if receiving is not None:
                            receiving.notice(data)
            except RedisError:
                await asyncio.sleep(RETRY_S)


def _nothing() -> None:
    """Callback for a close that needs none."""
