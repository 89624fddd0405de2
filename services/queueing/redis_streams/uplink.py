"""State that the lanes of one gateway share, and a request that a lane has sent."""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from redis.exceptions import RedisError

from services.errors import ServingError
from services.queueing.host_files import HostFiles
from services.queueing.memory_queue import Entry, Outcome
from services.queueing.records import Lane
from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.large_records import TransferLimit


class AnsweredLane(Protocol):
    """The interface of the lane that has sent a request."""

    @property
    def lane(self) -> Lane:
        """The version whose requests it sends."""

    def answered(self, sent: "Sent", outcome: Outcome) -> None:
        """Handles an outcome: the only one of a request, one of several, or its error."""

    def report_read_again(self) -> None:
        """Publishes once more how many parts were read."""

    async def send_lost_again(self) -> None:
        """Sends confirmed requests again that Redis lost before their outcome came."""


@dataclass(slots=True, eq=False)
class Sent:
    """A request in Redis, or on its way there.

    Attributes:
        number: no other request of this gateway has it.
        stream: the number of its stream; 1 is the lane's first. 0 for a step of a sequence.
        worker: the worker that owns its sequence.
        payload_key: key of its payload, if it is large.
        stream_id: None until Redis has confirmed it, and once its outcome has come.
        missed: number of checks that did not find it.
        again: True if it had been accepted, and Redis lost it, or its worker was gone.
    """

    number: int
    entry: Entry
    lane: AnsweredLane
    stream: int
    payload_key: str = ""
    worker: str = ""
    stream_id: bytes | None = None
    missed: int = 0
    again: bool = False


@dataclass(slots=True, kw_only=True)
class Uplink:
    """State that the lanes of one gateway share.

    Attributes:
        redis: for commands that do not block.
        gateway: its name.
        max_depth: the most requests a lane may hold in Redis.
        merged_rows: rows of a merged request, by lane; without lanes whose requests do not merge.
        row_s: by lane, seconds by which each request in it delays the next, where that is known.
        record_trip: callback for the success or failure of each round trip.
        files: of this host.
        workers: by default lane, names of the workers that may take its requests.
        refusal: why nothing may be sent at present, or None.
        writing: limit on large payloads that are written at once.
        unanswered: by number, what was sent and has no outcome yet.
    """

    redis: Commands
    gateway: str
    max_depth: int
    record_trip: Callable[[RedisError | None], None]
    files: HostFiles = field(default_factory=HostFiles)
    workers: Mapping[Lane, Collection[str]] = field(default_factory=dict)
    merged_rows: dict[Lane, int] = field(default_factory=dict)
    row_s: Mapping[Lane, float] = field(default_factory=dict)
    refusal: ServingError | None = None
    unanswered: dict[int, Sent] = field(default_factory=dict)
    writing: TransferLimit = field(default_factory=TransferLimit)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
