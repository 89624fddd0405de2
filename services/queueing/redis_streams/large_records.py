"""Stores requests and replies too large for one Redis command in a list, piece by piece.

In: the pieces that `wire.py` makes of a record. Out: the record again. The bytes of its tensors
come first, and behind them the record without them, which says how many there are. An empty piece
means nothing.

Rules:
- neither the event loop nor Redis is busy with one record for longer than with a few pieces;
- a list is forgotten after its time, however far its writer came;
- a record that an older version wrote as one string is read, too.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from redis.exceptions import ResponseError

from flambeau.protocol.tensors import (
    Array,
    TensorError,
    bytes_elements_in_slices,
    decode_raw,
    element_count,
)
from services.errors import ServingError
from services.interpreter_lock import lend_lock
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferRequest, Lane
from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.wire import (
    PIECE_BYTES,
    UNREADABLE,
    Piece,
    Reference,
    RequestRecord,
    TensorRecord,
    WireError,
    reply_of,
    reply_record,
    request_of,
    request_record,
    unreadable_reply,
    unreadable_request,
)

PIECES_AT_ONCE = 2
"""Pieces in one command, which takes Redis and the event loop less than a millisecond."""
RECORDS_AT_ONCE = 2
"""Large records that a process writes at once, and reads at once, and as many again of those over
`MEDIUM_BYTES`."""
MEDIUM_BYTES = 8 * 2**20
"""Records up to this size do not wait for larger ones."""
TEXT_BYTES = 48
"""Memory of a BYTES element beside its own bytes."""
UNFINISHED_LIVE_MS = 60_000
"""Expiry of an incomplete list, since its latest piece."""
Push = Callable[[list[Piece], int], Awaitable[object]]


async def write_pieces(pieces: Iterator[Piece], lives_ms: int, push: Push) -> None:
    """Writes a record to Redis.

    Args:
        pieces: of it.
        lives_ms: expiry of the record once it is complete.
        push: appends some of them to a list, and lets it live for so many milliseconds from then.

    Raises:
        RedisError: Redis is out of reach, or has no memory left.
    """
    some = list(islice(pieces, PIECES_AT_ONCE))
    while some:
        then = list(islice(pieces, PIECES_AT_ONCE))
        await push(some, UNFINISHED_LIVE_MS if then else lives_ms)
        some = then


def push_to(redis: Commands, key: str) -> Push:
    """Returns a function that appends pieces to a list, if Redis has the memory."""

    async def push(pieces: list[Piece], lives_ms: int) -> None:
        trip = redis.trip()
        trip.add("RPUSH", key, *pieces)
        trip.add("PEXPIRE", key, lives_ms)
        await trip.execute()

    return push


class LargeTensors:
    """The tensors of a record, which are still in Redis.

    Attributes:
        held_bytes: of all, once they are here.

    Raises:
        TensorError: the pieces cannot hold what the record says.
    """

    def __init__(
        self, redis: Commands, key: str, tensors: Sequence[TensorRecord], pieces: int
    ) -> None:
        sizes = [tensor.size for tensor in tensors]
        size = sum(sizes)
        if min(sizes, default=0) < 0 or size > pieces * PIECE_BYTES:
            raise TensorError(f"{pieces} pieces cannot hold {size} bytes")
        texts = [tensor.shape for tensor in tensors if tensor.datatype == "BYTES"]
        self.held_bytes = size + TEXT_BYTES * sum(map(element_count, texts))
        self._redis, self._key = redis, key
        self._tensors, self._pieces = tensors, pieces

    async def arrays(self) -> dict[str, Array]:
        """Fetches the tensors.

        Raises:
            TensorError: they are not what the record says.
            RedisError: Redis is out of reach.
        """
        found: dict[str, Array] = {}
        waiting: list[bytes] = []
        taken = 0
        for tensor in self._tensors:
            data = tensor.data
            if tensor.size:
                whole = np.empty(tensor.size, np.uint8)
                end = 0
                while end < tensor.size:
                    if not waiting:
                        last = min(taken + PIECES_AT_ONCE, self._pieces) - 1
                        waiting = await self._redis.send("LRANGE", self._key, taken, last)
                        if not waiting or last < taken:
                            raise TensorError("pieces of it have expired")
                        taken += len(waiting)
                    piece = waiting.pop(0)
                    start, end = end, end + len(piece)
                    if end > tensor.size:
                        raise TensorError(f"pieces of '{tensor.name}' do not end where it does")
                    whole[start:end] = np.frombuffer(piece, np.uint8)
                data = whole.data
            found[tensor.name] = await _array(tensor, data)
        return found


async def _array(tensor: TensorRecord, data: memoryview) -> Array:
    if tensor.datatype != "BYTES":
        return decode_raw(tensor.datatype, tensor.shape, data)
    slices = bytes_elements_in_slices(data, element_count(tensor.shape))
    while True:
        try:
            next(slices)
        except StopIteration as end:
            elements: Array = end.value
            return elements.reshape(tensor.shape)
        lend_lock()  # or the models' threads wait until the last element
        await asyncio.sleep(0)


async def find_request(
    redis: Commands, key: str, lane: Lane
) -> tuple[RequestRecord, LargeTensors] | None:
    """Returns the request under a key, without its tensors; None if it has expired.

    Raises:
        WireError: there is something else.
        RedisError: Redis is out of reach.
    """
    found = await _last(redis, key)
    if found is None:
        return None
    pieces, data = found
    record = request_record(data, lane)
    if isinstance(record, str):
        raise WireError(f"a queued request for model {lane} names another")
    try:
        return record, LargeTensors(redis, key, record.inputs, pieces)
    except UNREADABLE as error:
        raise unreadable_request(lane, error) from error


async def load_request(
    found: tuple[RequestRecord, LargeTensors], lane: Lane, deadline: float, alone: bool
) -> InferRequest:
    """Fetches what `find_request` found; the other arguments are as in `wire.decode_request`.

    Raises:
        WireError: it is incomplete.
        RedisError: Redis is out of reach.
    """
    record, tensors = found
    try:
        inputs = await tensors.arrays()
    except UNREADABLE as error:
        raise unreadable_request(lane, error) from error
    return request_of(record, inputs, lane, deadline, alone)


async def load_outcome(
    redis: Commands, key: str, lane: Lane, reserve: Callable[[int], object] = int
) -> Outcome | None:
    """Fetches the outcome under a key; None if it has expired.

    Args:
        redis: client of the Redis that stores it.
        key: key of the outcome.
        lane: that gave it.
        reserve: reservation of memory before its tensors are fetched.

    Raises:
        RedisError: Redis is out of reach.
        ServingError: `reserve` refuses it.
    """
    found = await _last(redis, key)
    if found is None:
        return None
    pieces, data = found
    try:
        record = reply_record(data)
        if isinstance(record, Reference):
            return WireError(f"the answer of model {lane} names another")
        if isinstance(record, ServingError):
            return record
        tensors = LargeTensors(redis, key, record.outputs, pieces)
        reserve(tensors.held_bytes)
        return reply_of(record, await tensors.arrays(), lane)
    except UNREADABLE as error:
        return unreadable_reply(lane, error)


async def length_of(redis: Commands, key: str) -> float:
    """Returns an upper bound of a record's bytes; infinite for one of an older version.

    Raises:
        RedisError: Redis is out of reach.
    """
    try:
        pieces: int = await redis.send("LLEN", key)
    except ResponseError:
        return math.inf
    return pieces * PIECE_BYTES


async def _last(redis: Commands, key: str) -> tuple[int, bytes] | None:
    """The pieces before a record, and the record."""
    try:
        trip = redis.trip()
        trip.add("LLEN", key)
        trip.add("LINDEX", key, -1)
        count, data = await trip.execute()
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        count, data = 1, await redis.fetch(key)
    return None if data is None else (count - 1, data)


class TransferLimit:
    """Limits the large records that a process reads, or writes, at once.

    Args:
        large: for records over `MEDIUM_BYTES`.
    """

    def __init__(self, large: int = RECORDS_AT_ONCE) -> None:
        self._medium = asyncio.Semaphore(RECORDS_AT_ONCE)
        self._large = asyncio.Semaphore(large)

    def of(self, size: float) -> asyncio.Semaphore:
        """Returns the semaphore for a record of this size."""
        return self._medium if size <= MEDIUM_BYTES else self._large


class Room:
    """Bytes of large requests and outcomes that a worker holds.

    A lane holds half of it at most, so that one whose model is slow does not keep others out, and
    records over `MEDIUM_BYTES` leave an eighth to those below.

    Args:
        limit_bytes: of all together. A lane that holds none may take one that is larger than its
            half, if there is room; one that is larger than the room is held alone.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken: Counter[Lane] = Counter()
        self._freed = asyncio.Event()

    async def take(self, lane: Lane, size: int) -> None:
        """Reserves room for a request of a lane; waits until there is enough."""
        while not self._has_room(lane, size):
            self._freed.clear()
            await self._freed.wait()
        self.charge(lane, size)

    def _has_room(self, lane: Lane, size: int) -> bool:
        taken, limit = self._taken.total(), self._limit_bytes
        if self._taken[lane] and self._taken[lane] + size > limit // 2:
            return False
        if size > MEDIUM_BYTES:
            limit -= limit // 8
        return not taken or taken + size <= limit

    def charge(self, lane: Lane, size: int) -> None:
        """Takes room for what is there already, however much there is."""
        self._taken[lane] += size

    def give(self, lane: Lane, size: int) -> None:
        """Releases room."""
        self._taken[lane] -= size
        if not self._taken[lane]:
            del self._taken[lane]
        self._freed.set()
