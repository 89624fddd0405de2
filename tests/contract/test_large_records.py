"""Requests and outcomes in pieces: they arrive unchanged, and block no other request."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
from redis.exceptions import RedisError

from flambeau.protocol.tensors import Array, object_array
from services.errors import BufferFullError, QueueFullError
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import JOB_PRIORITY, InferReply, InferRequest, Lane
from services.queueing.redis_streams import receiver, receiving_lane
from services.queueing.redis_streams.clients import Commands, RedisClients
from services.queueing.redis_streams.downlink import CLOGGED_BYTES
from services.queueing.redis_streams.jobs import JobLimits, Jobs
from services.queueing.redis_streams.keys import LaneKeys, large_replies_key, replies_key
from services.queueing.redis_streams.large_records import (
    MEDIUM_BYTES,
    UNFINISHED_LIVE_MS,
    Room,
    TransferLimit,
    find_request,
    load_outcome,
    load_request,
    push_to,
    write_pieces,
)
from services.queueing.redis_streams.outcome_delivery import LARGE_REPLIES_BYTES
from services.queueing.redis_streams.receiving_lane import ReceivingLane
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.sender import RedisSender
from services.queueing.redis_streams.wire import (
    INLINE_TEXTS,
    PIECE_BYTES,
    Piece,
    WireError,
    encode_outcome,
    encode_request,
    is_large,
    reply_pieces,
    request_pieces,
)
from tests.fixtures.queue_ends import (
    FURTHER,
    LANE,
    Caller,
    Ends,
    Shelf,
    redis_gateway,
    redis_worker,
    reply,
    request,
)
from tests.fixtures.redis_servers import RedisProcess, until, until_seen

LARGE = PIECE_BYTES // 4 + 1
TEXTS = object_array([b"", b"a\0", b"x" * PIECE_BYTES, b"y" * (3 * PIECE_BYTES + 1)] * 3)
KEY = "some-key"
TENSORS: list[dict[str, Array]] = [
    {},
    {"x": np.arange(LARGE, dtype="<f4").reshape(1, LARGE)},
    {"x": np.arange(2 * LARGE, dtype="<f8").reshape(2, LARGE)[:, ::2], "b": np.array([True])},
    {"empty": np.zeros((0, 3), "<i8"), "texts": TEXTS.reshape(3, 4), "h": np.ones(3, "<f2")},
    {"scalar": np.array(7), "word": object_array([b"w"]).reshape(()), "state": np.ones((2, 1, 3))},
    {"none": object_array([]).reshape(0, 2), "many": object_array([b"t"] * 10_000)},
]


@pytest.fixture
async def commands(redis: RedisProcess) -> AsyncIterator[Commands]:
    found = RedisClients(redis.url).open()
    yield found
    await found.close()


def same(found: dict[str, Array], sent: dict[str, Array]) -> bool:
    return list(found) == list(sent) and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tolist() == array.tolist()
        for name, array in sent.items()
    )


async def left(commands: Commands, sent: InferRequest) -> None:
    await write_pieces(request_pieces(sent), 60_000, push_to(commands, KEY))


async def loaded(commands: Commands) -> InferRequest | None:
    found = await find_request(commands, KEY, LANE)
    return None if found is None else await load_request(found, LANE, 1.0, alone=False)


@pytest.mark.parametrize("tensors", TENSORS)
async def test_a_request_comes_out_as_it_went_in(
    commands: Commands, tensors: dict[str, Array]
) -> None:
    sent = msgspec.structs.replace(request("é"), inputs=tensors, outputs=("b",))
    assert all(0 < len(piece) <= PIECE_BYTES for piece in request_pieces(sent))
    await left(commands, sent)
    found = await loaded(commands)
    assert found is not None
    assert (found.request_id, found.rows, found.outputs) == ("é", 1, ("b",))
    assert same(dict(found.inputs), tensors)


@pytest.mark.parametrize("tensors", TENSORS)
async def test_an_outcome_comes_out_as_it_went_in(
    commands: Commands, tensors: dict[str, Array]
) -> None:
    sent = msgspec.structs.replace(reply(), outputs=tensors)
    await write_pieces(reply_pieces(sent), 60_000, push_to(commands, KEY))
    found = await load_outcome(commands, KEY, LANE)
    assert isinstance(found, InferReply)
    assert (found.lane, found.datatypes, found.queue_s) == (LANE, sent.datatypes, sent.queue_s)
    assert same(dict(found.outputs), tensors)


async def test_what_an_older_version_left_is_read(commands: Commands) -> None:
    await commands.send("SET", KEY, encode_request(request(elements=LARGE)))
    found = await loaded(commands)
    assert found is not None
    assert found.inputs["x"].shape == (1, LARGE)
    await commands.send("SET", KEY, encode_outcome(reply(7, elements=LARGE)))
    outcome = await load_outcome(commands, KEY, LANE)
    assert isinstance(outcome, InferReply)
    assert outcome.outputs["y"][0, -1] == 7


async def test_what_has_expired_is_none(commands: Commands) -> None:
    assert await loaded(commands) is None
    assert await load_outcome(commands, KEY, LANE) is None


@pytest.mark.parametrize("lost", [1, 3, 4])
async def test_what_has_lost_pieces_is_an_error(commands: Commands, lost: int) -> None:
    await left(commands, request(elements=4 * LARGE))
    await commands.send("LTRIM", KEY, lost, -1)
    with pytest.raises(WireError, match=r"cannot be read: [1-4] pieces"):
        await loaded(commands)
    await commands.send("RPUSH", KEY, b"nonsense")
    with pytest.raises(WireError):
        await loaded(commands)
    assert isinstance(await load_outcome(commands, KEY, LANE), WireError)


async def test_memory_is_reserved_before_an_outcome_is_fetched(commands: Commands) -> None:
    reserved: list[int] = []

    def reserve(size: int) -> None:
        reserved.append(size)
        raise BufferFullError("full")

    await write_pieces(reply_pieces(reply(elements=LARGE)), 60_000, push_to(commands, KEY))
    with pytest.raises(BufferFullError):
        await load_outcome(commands, KEY, LANE, reserve)
    assert reserved == [4 * LARGE]


def test_what_travels_in_pieces() -> None:
    few, many = [object_array([b""] * count) for count in (INLINE_TEXTS, INLINE_TEXTS + 1)]
    assert not is_large({"a": few, "x": np.zeros(1000)})
    assert is_large({"a": many})
    assert is_large({"a": object_array([b"x" * PIECE_BYTES, b"y"])})
    assert is_large({"a": np.zeros(LARGE // 2, "<f4"), "b": np.zeros(LARGE // 2 + 1, "<f4")})


async def turns_until(done: "asyncio.Future[Any]") -> int:
    """Returns the number of event loop turns meanwhile."""
    turns = 0
    while not done.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_neither_end_does_all_of_a_large_record_in_one_turn(redis: RedisProcess) -> None:
    texts = object_array([b"text"] * 2**17).reshape(1, 2**17)
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf), redis_gateway(redis.url, "g") as g:
        sent = msgspec.structs.replace(request(), inputs={"x": texts})
        caller = Caller(g, sent)
        turns = await turns_until(asyncio.ensure_future(shelf.holds(1)))
        assert turns > 2 * 64  # pieces of 2048 elements, written and read
        shelf.take().finish(msgspec.structs.replace(reply(), outputs={"y": texts}))
        answered = asyncio.ensure_future(caller.outcome())
        assert await turns_until(answered) > 2 * 64
        outcome = answered.result()
        assert isinstance(outcome, InferReply)
        assert outcome.outputs["y"].tolist() == texts.tolist()


async def test_large_outcomes_of_one_lane_do_not_stop_the_others(redis: RedisProcess) -> None:
    """Nor do large payloads keep small ones of their own lane waiting."""
    large, small = Shelf(), Shelf()
    elements = CLOGGED_BYTES // 4
    async with redis_worker(redis.url, "w", large) as worker, redis_gateway(redis.url, "g") as g:
        worker.open(FURTHER, small)
        ends = Ends(g, worker, large)
        first, second = ends.send(1), ends.send(2)
        await large.holds(2)
        for number in (1, 2):
            large.take().finish(reply(number, elements=elements))
        caller = Caller(g, request("small", lane=FURTHER))
        await small.holds(1)
        small.take().finish(reply(3, lane=FURTHER))
        assert await caller.value() == 3
        assert not first.heard or not second.heard
        assert (await first.value(), await second.value()) == (1, 2)


async def test_a_job_may_have_a_large_result(redis: RedisProcess) -> None:
    jobs, shelf = Jobs(RedisClients(redis.url), JobLimits(max_waiting=4, result_ttl_s=100)), Shelf()
    running = asyncio.create_task(jobs.run())
    job_id, _ = await jobs.submit(request(priority=JOB_PRIORITY, elements=3 * LARGE), 60)
    async with redis_worker(redis.url, "w", shelf):
        (entry,) = await shelf.holds(1)
        assert entry.request.inputs["x"].shape == (1, 3 * LARGE)
        shelf.take().finish(reply(7, elements=3 * LARGE))
        job = await jobs.wait(job_id, 10)
    assert job.state == "done"
    assert isinstance(job.outcome, InferReply)
    assert job.outcome.outputs["y"].tolist() == [[7] * 3 * LARGE]
    assert (await jobs.find(job_id, None)).outcome is None
    assert [listed.id for listed in await jobs.of_model("m")] == [job_id]
    (key,) = await redis.client.keys("*job-outcome*")
    assert 60 < await redis.client.ttl(key) <= 100
    assert not await redis.client.keys("*payload*")
    running.cancel()
    await asyncio.wait([running])


async def test_an_unfinished_list_has_a_short_life() -> None:
    lives: list[int] = []

    async def push(pieces: list[Piece], lives_ms: int) -> None:
        assert pieces
        lives.append(lives_ms)

    await write_pieces(request_pieces(request(elements=8 * LARGE)), 86_400_000, push)
    assert lives == [UNFINISHED_LIVE_MS] * (len(lives) - 1) + [86_400_000]
    assert len(lives) > 3


async def test_an_answer_that_waits_to_be_fetched_is_not_lost(redis: RedisProcess) -> None:
    shelf, queue = Shelf(), MemoryQueue(1000)
    sender = RedisSender(RedisClients(redis.url), "g", 4)
    lane = sender.lane(LANE)
    queue.open(LANE, lane)
    running = asyncio.create_task(sender.run())
    await sender.reached.wait()
    async with redis_worker(redis.url, "w", shelf) as worker:
        caller = Ends(queue, worker, shelf).send()
        await shelf.holds(1)
        shelf.take().finish(reply(4, elements=256 * LARGE))
        streams = LaneKeys(LANE).streams

        async def has_left() -> bool:  # its response is sent, and not fetched yet
            return not sum([await redis.client.xlen(stream) for stream in streams])

        await until_seen(has_left)
        await until_seen(lambda: _none(redis, replies_key("g")))
        for _ in range(3):
            await lane.send_lost_again()
        assert not caller.heard
        assert await caller.value() == 4
        assert await has_left()
        assert not shelf.entries
        await until_seen(lambda: _none(redis, "*reply*"))
    running.cancel()
    await asyncio.wait([running])


async def _none(redis: RedisProcess, pattern: str) -> bool:
    return not await redis.client.keys(pattern)


async def test_an_answer_that_waits_for_room_is_not_taken_over(
    redis: RedisProcess, commands: Commands, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker would take what its own has not mentioned for a while."""
    keep, looks = ReceivingLane.keep, Counter[ReceivingLane]()

    async def counted(lane: ReceivingLane) -> None:
        await keep(lane)
        looks[lane] += 1

    monkeypatch.setattr(ReceivingLane, "keep", counted)
    enough = 4 * receiving_lane.ABANDONED_S / receiver.KEEP_EVERY_S
    first, second = Shelf(), Shelf()
    await commands.send("RPUSH", "other", "x")
    await commands.send("ZADD", large_replies_key("g"), LARGE_REPLIES_BYTES, "other")
    async with redis_worker(redis.url, "w", first) as worker, redis_gateway(redis.url, "g") as g:
        caller = Ends(g, worker, first).send()
        await first.holds(1)
        async with redis_worker(redis.url, "v", second):
            first.take().finish(reply(6, elements=LARGE))
            looks.clear()
            await until(lambda: len(looks) == 4 and min(looks.values()) >= enough)
            assert not caller.heard
            await commands.send("UNLINK", "other")
            assert await caller.value() == 6
            assert not first.entries
            assert not second.entries


async def test_answers_that_nobody_waits_for_leave_nothing(redis: RedisProcess) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        callers = [Ends(g, worker, shelf).send(number) for number in range(4)]
        await shelf.holds(4)
        for number in range(4):
            shelf.take().finish(reply(number, elements=16 * LARGE))
        for caller in callers[:3]:
            caller.entry.cancel()
        assert await callers[3].value() == 3  # which comes after them
        await until_seen(lambda: _none(redis, "*repl*"))


async def test_a_worker_waits_until_large_answers_are_fetched(
    redis: RedisProcess, commands: Commands
) -> None:
    size, most, script = 60, 100, Script("take_room")

    async def take(key: str) -> int:
        return int(await script(commands, ("large", key), size, most, 60))

    assert await take("first") == 1
    assert await take("second") == 0
    await commands.send("UNLINK", "first")  # as of a worker that died, or a gateway
    assert await take("second") == 1
    assert await take("third") == 0
    await commands.send("ZREM", "large", "second")
    assert await take("third") == 1
    await write_pieces(reply_pieces(reply(3, elements=LARGE)), 60_000, push_to(commands, "third"))
    outcome = await load_outcome(commands, "third", LANE)  # after the piece that reserves its place
    assert isinstance(outcome, InferReply)
    assert outcome.outputs["y"][0, -1] == 3


async def test_a_request_that_redis_has_no_memory_for_leaves_nothing(redis: RedisProcess) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        used = (await redis.client.info("memory"))["used_memory"]
        await redis.client.config_set("maxmemory", used + 16 * 2**20)
        outcome = await Ends(g, worker, shelf).send(elements=128 * LARGE).outcome()
        assert isinstance(outcome, QueueFullError)
        assert "has no memory left (command not allowed when used memory" in str(outcome)
        assert not await redis.client.keys("*payload*")
        await redis.client.config_set("maxmemory", 0)


@pytest.mark.parametrize("count", [1, 5000])
async def test_outputs_that_are_no_text_are_an_error(redis: RedisProcess, count: int) -> None:
    shelf, broken = Shelf(), np.array(["\ud800"] * count, object)
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        caller = Ends(g, worker, shelf).send()
        await shelf.holds(1)
        shelf.take().finish(msgspec.structs.replace(reply(), outputs={"y": broken}))
        outcome = await caller.outcome()
        assert "version 1 cannot be written: a BYTES element" in str(outcome)
        caller = Ends(g, worker, shelf).send()
        await shelf.holds(1)
        shelf.take().finish(reply(2))
        assert await caller.value() == 2


async def test_pieces_that_were_left_twice_are_not_mixed(redis: RedisProcess) -> None:
    """A worker whose connection breaks in the middle begins anew."""
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        caller = Ends(g, worker, shelf).send()
        await shelf.holds(1)
        shelf.take().finish(reply(5, elements=64 * LARGE))
        async with asyncio.timeout(10):
            while not await redis.client.keys("*reply:*"):  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0)
        with contextlib.suppress(RedisError):
            await redis.client.client_kill_filter(_type="normal")
        assert await caller.value() == 5


ONE, OTHER, THIRD = (Lane(name, 1) for name in ("one", "other", "third"))


async def has_room(room: Room, lane: Lane, size: int) -> bool:
    """Returns True if a lane could take that much at once, and takes it."""
    taking = asyncio.ensure_future(room.take(lane, size))
    await asyncio.sleep(0)
    return not taking.cancel()


async def test_a_worker_holds_so_many_bytes_of_large_requests() -> None:
    room = Room(100)
    await room.take(ONE, 60)
    waiting = [
        asyncio.ensure_future(room.take(lane, size)) for lane, size in ((OTHER, 60), (THIRD, 300))
    ]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    room.give(ONE, 60)
    await asyncio.wait_for(waiting[0], 5)
    assert not waiting[1].done()
    room.give(OTHER, 60)
    await asyncio.wait_for(waiting[1], 5)  # larger than the room: alone
    room.charge(ONE, 50)  # an outcome exists, with or without room
    room.give(THIRD, 300)
    assert not await has_room(room, OTHER, 60)
    room.give(ONE, 50)
    assert await has_room(room, OTHER, 60)
    room.charge(ONE, 40)
    assert not await has_room(room, THIRD, 1)


async def test_a_lane_keeps_room_for_others() -> None:
    room = Room(100)
    await room.take(ONE, 30)
    assert not await has_room(room, ONE, 30)  # half is its share
    assert await has_room(room, OTHER, 60)
    assert await has_room(room, ONE, 10)


@pytest.mark.parametrize(
    ("size", "fits"), [(2 * MEDIUM_BYTES, True), (2 * MEDIUM_BYTES + 1, False)]
)
async def test_large_requests_take_seven_eighths_of_the_room(size: int, fits: bool) -> None:
    room = Room(16 * MEDIUM_BYTES)
    for lane in (ONE, OTHER):
        await room.take(lane, 6 * MEDIUM_BYTES)
    assert await has_room(room, THIRD, size) is fits


async def test_large_requests_leave_room_for_smaller_ones() -> None:
    room = Room(16 * MEDIUM_BYTES)
    await room.take(ONE, 7 * MEDIUM_BYTES)
    await room.take(OTHER, 7 * MEDIUM_BYTES)
    assert not await has_room(room, THIRD, MEDIUM_BYTES + 1)
    assert await has_room(room, THIRD, MEDIUM_BYTES)


async def test_medium_records_have_places_of_their_own() -> None:
    places = TransferLimit()
    async with places.of(MEDIUM_BYTES + 1), places.of(math.inf):
        assert places.of(MEDIUM_BYTES + 1).locked()
        assert not places.of(MEDIUM_BYTES).locked()
