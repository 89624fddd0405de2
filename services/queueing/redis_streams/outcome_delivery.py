"""Delivery of outcomes: from a worker to the gateways that wait, or to the jobs in Redis.

In: outcomes of held requests, and parts of several answers. Out: a list of the gateway, or the
hash of a job; then the request leaves its stream.

Rules:
- a request leaves its stream only after its last outcome has been delivered;
- all ready outcomes go in one round trip, up to a limit of bytes; large ones are written in pieces
  beside the list, or in a file if the gateway shares the host, and delay no other;
- outcomes wait for as long as Redis is unreachable.
"""

import asyncio
import itertools
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from redis.exceptions import NoScriptError, RedisError

from flambeau.protocol.tensors import TensorError
from services.errors import DeadlineExceededError
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferReply
from services.queueing.redis_streams.clients import RedisClients, Trip
from services.queueing.redis_streams.downlink import CLOGGED_BYTES, Downlink, Held
from services.queueing.redis_streams.keys import (
    GROUP,
    JOB,
    NOBODY,
    JobKeys,
    large_replies_key,
    large_reply_key,
    replies_key,
)
from services.queueing.redis_streams.large_records import TransferLimit, write_pieces
from services.queueing.redis_streams.receiving_lane import RETRY_S
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.sender import NUMBER
from services.queueing.redis_streams.sending_lane import AT_ONCE, AT_ONCE_BYTES
from services.queueing.redis_streams.wire import (
    Piece,
    WireError,
    bytes_of,
    encode_outcome,
    encode_reference,
    file_parts,
    fits_a_file,
    is_large,
    reply_pieces,
)

REPLIES_LIVE_S = 60
"""Expiry of outcomes that no gateway fetches."""
LARGE_REPLIES_BYTES = 128 * 2**20
"""Limit on large outcomes that one gateway has not fetched."""
FETCHED_WITHIN_S = 10.0
LOOK_FOR_ROOM_S = 0.05
JOB_OUTCOMES_LIVE_S = 3600
"""Large ones, until the job is stored as over: Redis may be out of reach meanwhile."""


class Outgoing(NamedTuple):
    """An outcome on its way to a gateway.

    Attributes:
        held: its request.
        data: its bytes; none to let the request go without one.
        is_part: True for one of several answers that is not the last.
    """

    held: Held
    data: bytes
    is_part: bool


class OutcomeDelivery:
    """Delivers the outcomes of one worker.

    Args:
        clients: of the Redis that the gateways read from.
        downlink: state of the worker's lanes, which hand their outcomes over through it.
        tasks: group of the tasks that write large outcomes.
        freed: callback for large outcomes that no longer take room.
    """

    def __init__(
        self,
        clients: RedisClients,
        downlink: Downlink,
        tasks: asyncio.TaskGroup,
        freed: Callable[[], None],
    ) -> None:
        self._clients = clients
        self._redis = downlink.redis
        self._downlink = downlink
        self._tasks = tasks
        self._freed = freed
        self._answer_script, self._finish_job = Script("answer"), Script("finish_job")
        self._keep_pieces, self._take_room = Script("keep_pieces"), Script("take_room")
        self._attempts = itertools.count(1)
        self._writing = TransferLimit()
        self._outbox: list[Outgoing] = []
        self._done: list[Held] = []
        """Answered, and still in their streams."""
        self._trip: asyncio.Task[None] | None = None
        downlink.answer, downlink.give = self.answer, self.give

    @property
    def is_under_way(self) -> bool:
        """True while outcomes travel, or wait for a trip."""
        return self._trip is not None

    def answer(self, held: Held, outcome: Outcome | None) -> None:
        """Hands an outcome over, with all others of this turn of the loop."""
        held.state = _state_of(outcome)
        if held.gateway == JOB and outcome is not None:
            lane = held.lane.lane
            labels = (lane.model, str(lane.version), held.state)
            self._downlink.metrics.finished_jobs.labels(*labels).inc()
        if held.suspect:
            self._downlink.look.set()  # there may be another
        try:
            if outcome is None or held.gateway == NOBODY:
                self._send(held, b"")
            elif isinstance(outcome, InferReply) and is_large(outcome.outputs):
                self._start_writing(held, outcome)
            else:
                self._send(held, encode_outcome(outcome))
        except (TensorError, TypeError) as error:
            self._send_unwritable(held, error)

    def give(self, held: Held, reply: InferReply) -> None:
        """Hands over one of several answers; its request stays in its stream."""
        try:
            if is_large(reply.outputs):
                self._start_writing(held, reply)
            else:
                self._send(held, encode_outcome(reply), is_part=True)
        except (TensorError, TypeError) as error:
            held.lane.fail(held, _unwritable(held, error))

    def _start_writing(self, held: Held, reply: InferReply) -> None:
        self._count_unwritten(held, _least_bytes(reply))
        self._tasks.create_task(self._write(held, reply))

    def _send_unwritable(self, held: Held, error: Exception) -> None:
        """Answers with an error in place of outputs that are none of the protocol's."""
        held.state = "failed"
        self._send(held, encode_outcome(_unwritable(held, error)))

    def _send(self, held: Held, data: bytes, *, is_part: bool = False) -> None:
        """Hands over what travels of an outcome; nothing only lets its request go."""
        self._outbox.append(Outgoing(held, data, is_part))
        if self._trip is None:
            self._trip = asyncio.get_running_loop().create_task(self._run_trips())

    async def _write(self, held: Held, reply: InferReply) -> None:
        """Writes a large outcome under a key of its own, as often as it takes; then hands it over.

        A key is never written twice: the pieces of another attempt would be part of it.
        """
        is_job, size, failed = held.gateway == JOB, _least_bytes(reply), list[str]()
        if in_file := await self._write_file(held, reply):
            self._send(held, in_file, is_part=not reply.is_last)
        while not in_file:
            attempt = f"{self._downlink.worker}-{next(self._attempts)}"
            if is_job:
                key = JobKeys(held.lane.lane.model).outcome(held.number, attempt)
            else:
                key = large_reply_key(held.gateway, held.number, attempt)
            lives_s = JOB_OUTCOMES_LIVE_S if is_job else REPLIES_LIVE_S
            try:
                if not is_job:
                    await self._wait_for_room(held.gateway, key, size)
                async with self._writing.of(bytes_of(reply.outputs)):
                    await write_pieces(
                        reply_pieces(reply), lives_s * 1000, partial(self._push, key)
                    )
                if failed:
                    await self._redis.send("UNLINK", *failed)
            except RedisError as error:
                failed.append(key)
                self._clients.outage.failed(error)
                await asyncio.sleep(RETRY_S)
            except TensorError as error:
                if reply.is_last:
                    self._send_unwritable(held, error)
                else:
                    held.lane.fail(held, _unwritable(held, error))
                break
            else:
                if reply.is_last:
                    held.outcome_key = key
                reference = encode_reference(key, is_last=reply.is_last)
                self._send(held, reference, is_part=not reply.is_last)
                break
        self._count_unwritten(held, -size)

    async def _write_file(self, held: Held, reply: InferReply) -> bytes:
        """Writes a large outcome for a gateway of this host, if it is. Returns its record."""
        files, gateway, size = self._downlink.files, held.gateway, _least_bytes(reply)
        if not (files.reaches([gateway]) and fits_a_file(reply.outputs)):
            return b""
        unread = files.reply_bytes(gateway)
        if unread and unread + size > LARGE_REPLIES_BYTES:
            return b""
        name = f"reply-{held.number}-{secrets.token_hex(8)}"
        async with self._writing.of(size):
            is_written = await files.write(
                gateway,
                name,
                file_parts(reply.outputs),
                lambda: not self._downlink.is_gone(gateway),
            )
        return encode_outcome(reply, name) if is_written else b""

    async def _wait_for_room(self, gateway: str, key: str, size: int) -> None:
        """Waits while a gateway has large outcomes to fetch; Redis has to keep them meanwhile.

        After `FETCHED_WITHIN_S` it is written all the same: the gateway may be slow.
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

    def _count_unwritten(self, held: Held, size: int) -> None:
        """Counts bytes of a large outcome that is on its way, or no longer."""
        held.lane.count_unwritten(held, size)
        self._downlink.unwritten_bytes += size
        if size > 0:
            self._downlink.room.charge(held.lane.lane, size)
        else:
            self._downlink.room.give(held.lane.lane, -size)
            self._freed()

    async def _run_trips(self) -> None:
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
            self._downlink.quiet.set()

    def _pack(self) -> list[Outgoing]:
        """Returns the next pipeline's outcomes: one, and more up to limits of number and bytes."""
        count, room = 0, AT_ONCE_BYTES
        while count < min(len(self._outbox), AT_ONCE) and room > 0:
            room -= len(self._outbox[count].data)
            count += 1
        packed, self._outbox = self._outbox[:count], self._outbox[count:]
        self._downlink.is_clogged = sum(len(one.data) for one in self._outbox) > CLOGGED_BYTES
        return packed

    async def _hand_over(self, outbox: Sequence[Outgoing], done: Sequence[Held]) -> list[Held]:
        """One trip: outcomes to where they belong, and what is over off its stream.

        A request may leave its stream only when its outcome is safe: in the same script, or, where
        a cluster may keep the two in different slots, with the next trip.

        Returns:
            What may leave its stream with the next trip.
        """
        calls: list[tuple[Script, list[str], list[object]]] = []
        to_gateways: dict[str, list[Outgoing]] = defaultdict(list)
        gone, later = list(done), []
        for one in outbox:
            held = one.held
            if not one.data or held.gateway == NOBODY:
                gone.append(held)
            elif held.gateway == JOB:
                calls.append((self._finish_job, *_finish_call(held, one.data)))
            else:
                to_gateways[held.gateway].append(one)
                if not (one.is_part or self._leaves_at_once(held)):
                    later.append(held)
        for gateway, outcomes in to_gateways.items():
            leaving = [
                one.held for one in outcomes if not one.is_part and self._leaves_at_once(one.held)
            ]
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
    gateway: str, outcomes: Sequence[Outgoing], leaving: Sequence[Held]
) -> tuple[list[str], list[object]]:
    """Keys and arguments of the script that hands outcomes to a gateway.

    Args:
        gateway: which.
        outcomes: and whose they are.
        leaving: those of them that leave their streams at once.
    """
    listed = [NUMBER.pack(one.held.number) + one.data for one in outcomes]
    arguments: list[object] = [REPLIES_LIVE_S, GROUP, len(listed), *listed]
    by_stream = _ids_by_stream(leaving)
    for ids in by_stream.values():
        arguments += (len(ids), *ids)
    return [replies_key(gateway), *by_stream], arguments


def _ids_by_stream(leaving: Sequence[Held]) -> dict[str, list[bytes]]:
    """Returns the ids of requests by the stream that holds them."""
    ids: dict[str, list[bytes]] = defaultdict(list)
    for held in leaving:
        ids[held.stream_key].append(held.stream_id)
    return ids


def _least_bytes(reply: InferReply) -> int:
    """Returns the least size of an outcome, which is known at once: texts count as references."""
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
    for held in done:
        if held.payload_key:
            trip.add("UNLINK", held.payload_key)
    for stream, stream_ids in _ids_by_stream(done).items():
        trip.add("XACK", stream, GROUP, *stream_ids)
        trip.add("XDEL", stream, *stream_ids)


def _unwritable(held: Held, error: Exception) -> WireError:
    return WireError(f"the answer of model {held.lane.lane} cannot be written: {error}")
