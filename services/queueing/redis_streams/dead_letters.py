"""Dead letters: requests whose workers died, kept for inspection.

In: a Redis, and the id of a letter. Out: its request; or it is requeued or deleted.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial

from redis.exceptions import OutOfMemoryError

from services.errors import DeadLetterError
from services.queueing.host_files import HostFiles
from services.queueing.records import InferRequest, Lane
from services.queueing.redis_streams.clients import Commands, RedisClients
from services.queueing.redis_streams.keys import GROUP, JOB, NOBODY, JobKeys, LaneKeys, lane_of
from services.queueing.redis_streams.large_records import (
    find_request,
    load_request,
    push_to,
    write_pieces,
)
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.wire import (
    WireError,
    decode_request,
    encode_reference,
    is_large,
    request_pieces,
)

SHOWN_AT_ONCE = 100
MAX_DEAD_LETTERS = 1000
DEAD_LETTERS_LIVE_S = 7 * 86_400
_KEY = re.compile(r"flambeau:\{(?P<model>[^{}]+)\}:(?P<version>\d+(@[a-z0-9-]+)?):dead")


class NoSuchLetterError(LookupError):
    """No dead letter has this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One request whose workers died."""

    id: str
    lane: Lane
    died_at: float
    """A second of Unix time, by Redis' clock."""
    error: str
    stream: str
    address: str
    payload: bytes
    """The request, or the key of its payload."""


class DeadLetters:
    """All dead letters of one Redis."""

    def __init__(self, clients: RedisClients) -> None:
        self._redis = clients.open()
        self._scan = clients.scan
        self._revive = Script("revive")

    async def all(self) -> list[DeadLetter]:
        """Returns the oldest `SHOWN_AT_ONCE` of each lane.

        Raises:
            RedisError: Redis is out of reach.
        """
        letters = []
        for lane in sorted([lane async for lane in self._lanes()]):
            letters += await self._read(lane, "-", "+")
        return letters

    async def find(self, letter_id: str) -> DeadLetter:
        """Returns the letter of an id.

        Raises:
            NoSuchLetterError: there is none.
            RedisError: Redis is out of reach.
        """
        async for lane in self._lanes():
            for letter in await self._read(lane, letter_id, letter_id):
                return letter
        raise NoSuchLetterError(
            f"there is no dead letter '{letter_id}'; `flambeau queue dead list` shows them"
        )

    async def request(self, letter: DeadLetter) -> InferRequest:
        """Returns the request of a letter.

        Raises:
            WireError: it cannot be read, or was large and has expired.
            RedisError: Redis is out of reach.
        """
        found = decode_request(letter.payload, letter.lane, 0.0, alone=False)
        if not isinstance(found, str):
            return found
        large = await find_request(self._redis, found, letter.lane)
        if large is None:
            raise WireError(f"the payload of dead letter {letter.id} was large and has expired")
        return await load_request(large, letter.lane, 0.0, alone=False)

    async def retry(self, letter: DeadLetter, timeout_s: float) -> bool:
        """Puts a letter back on its stream. Returns True if it was still there.

        A job is queued once more; the caller of a request has had its error, so the outcome of
        that is dropped.

        Raises:
            RedisError: Redis is out of reach.
        """
        keys = [LaneKeys(letter.lane).dead, letter.stream]
        gateway, _, number = letter.address.rpartition(" ")
        if gateway == JOB:
            keys.append(JobKeys(letter.lane.model).job(int(number)))
        else:
            gateway = NOBODY
        return bool(
            await self._revive(
                self._redis, keys,
                letter.id, int(timeout_s * 1e6), f"{gateway} {number}", letter.payload,
            )
        )  # fmt: skip

    async def drop(self, letter: DeadLetter) -> bool:
        """Deletes a letter. Returns True if it was still there.

        Raises:
            RedisError: Redis is out of reach.
        """
        return bool(await self._redis.send("XDEL", LaneKeys(letter.lane).dead, letter.id))

    async def close(self) -> None:
        """Closes the connection."""
        await self._redis.close()

    async def _lanes(self) -> AsyncIterator[Lane]:
        """Those that have any."""
        async for key in self._scan("flambeau:*:dead"):
            if (found := _KEY.fullmatch(key)) is not None:  # a caller may have named a key so
                yield lane_of(found["model"], found["version"])

    async def _read(self, lane: Lane, first: str, last: str) -> list[DeadLetter]:
        found = await self._redis.send(
            "XRANGE", LaneKeys(lane).dead, first, last, "COUNT", SHOWN_AT_ONCE
        )
        return [_letter(lane, letter_id.decode(), fields) for letter_id, fields in found]


class Undertaker:
    """Moves requests of one lane to its dead letters.

    Args:
        redis: client of the workers' Redis.
        lane: which.
        keys: of its requests, or of its jobs.
        files: of this host, where their tensors may be.
    """

    def __init__(self, redis: Commands, lane: Lane, keys: LaneKeys, files: HostFiles) -> None:
        self._redis, self._lane, self._keys, self._files = redis, lane, keys, files
        self._bury = Script("bury")

    async def bury(
        self, stream: str, stream_id: bytes, fields: Mapping[bytes, bytes]
    ) -> DeadLetterError:
        """Moves a request to the dead letters, with its tensors. Returns its error.

        Raises:
            RedisError: Redis is out of reach.
        """
        error = DeadLetterError(
            f"this request to model {self._lane} was running when two workers died, the second "
            "time alone; it was moved to the dead letters (flambeau queue dead list)"
        )
        keys, payload = [stream, self._keys.dead], fields[b"payload"]
        gateway = fields[b"address"].decode().rpartition(" ")[0]
        with contextlib.suppress(WireError, OutOfMemoryError):
            read = partial(self._files.read, gateway)
            request = decode_request(payload, self._lane, 0.0, alone=True, read=read)
            if isinstance(request, str):
                keys.append(request)
            elif is_large(request.inputs):  # in a file of its gateway, which ends with its request
                key = f"{self._keys.payload}:{stream_id.decode()}"
                pieces, lives_ms = request_pieces(request), DEAD_LETTERS_LIVE_S * 1000
                await write_pieces(pieces, lives_ms, push_to(self._redis, key))
                keys.append(key)
                payload = encode_reference(key)
        await self._bury(
            self._redis, keys, GROUP, stream_id, str(error), MAX_DEAD_LETTERS,
            DEAD_LETTERS_LIVE_S, payload,
        )  # fmt: skip
        return error


def _letter(lane: Lane, letter_id: str, fields: Mapping[bytes, bytes]) -> DeadLetter:
    return DeadLetter(
        id=letter_id,
        lane=lane,
        died_at=int(letter_id.partition("-")[0]) / 1000,
        error=fields[b"error"].decode(),
        stream=fields[b"stream"].decode(),
        address=fields[b"address"].decode(),
        payload=fields[b"payload"],
    )
