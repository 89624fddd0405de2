"""One lane of a gateway, without the sender that runs it: what it counts, and what it reports."""

from collections.abc import AsyncIterator

import pytest
from redis.exceptions import RedisError

from services.errors import QueueUnavailableError
from services.queueing.memory_queue import MemoryQueue
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import alive_key
from services.queueing.redis_streams.outage import unreachable
from services.queueing.redis_streams.sending_lane import SendingLane
from services.queueing.redis_streams.uplink import Uplink
from tests.contract.test_sequences import step_request
from tests.fixtures.queue_ends import LANE, MAX_DEPTH, Caller, Shelf, redis_worker, request
from tests.fixtures.redis_servers import RedisProcess, until_seen
from tests.unit.wire.http_wire import settle

pytestmark = pytest.mark.usefixtures("impatient")


class Gateway:
    """A queue with one lane.

    Attributes:
        faults: what the lane has reported of its round trips.
    """

    def __init__(self, url: str) -> None:
        self.faults: list[RedisError | None] = []
        self.redis = RedisClients(url).open()
        self.uplink = Uplink(
            redis=self.redis, gateway="g", max_depth=MAX_DEPTH, record_trip=self.faults.append
        )
        self.lane = SendingLane(self.uplink, LANE)
        self.queue = MemoryQueue(1000)
        self.queue.open(LANE, self.lane)


@pytest.fixture
async def gateway(redis: RedisProcess) -> AsyncIterator[Gateway]:
    gateway = Gateway(redis.url)
    await redis.client.set(alive_key("g"), 1, ex=60)
    yield gateway
    await gateway.redis.close()


@pytest.mark.parametrize("is_step", [False, True])
async def test_a_trip_that_fails_is_reported_and_its_request_refused(
    redis: RedisProcess, gateway: Gateway, is_step: bool
) -> None:
    redis.kill()
    caller = Caller(gateway.queue, step_request("s", "start") if is_step else request())
    error = await caller.outcome()
    assert isinstance(error, QueueUnavailableError)
    (fault,) = gateway.faults
    assert isinstance(fault, RedisError)
    assert str(fault) in str(error)
    assert gateway.lane.waiting == 0
    assert not gateway.uplink.unanswered


async def test_what_redis_lost_waits_until_redis_is_reached_again(
    redis: RedisProcess, gateway: Gateway
) -> None:
    lane, shelf = gateway.lane, Shelf()
    async with redis_worker(redis.url, "w", shelf):
        caller = Caller(gateway.queue, request())
        await shelf.holds(1)
        assert lane.waiting == 0
        await redis.client.flushall()
        await redis.client.set(alive_key("g"), 1, ex=60)
        for _ in range(2):
            await lane.send_lost_again()
        gateway.uplink.refusal = unreachable("it has just gone")
        assert lane.waiting == 1, "it is to be sent"
        await settle()  # its trip ends, and has sent nothing
        assert lane.waiting == 1, "it is kept"
        assert not gateway.uplink.unanswered
        gateway.uplink.refusal = None

        async def is_there() -> bool:
            await lane.send_lost_again()
            return len(shelf.entries) == 2

        await until_seen(is_there)
        assert lane.waiting == 0
        assert not caller.heard
