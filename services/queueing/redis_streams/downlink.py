"""State that the lanes of one worker share, and a request that a lane holds."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from services.errors import ServingError
from services.queueing.host_files import HostFiles
from services.queueing.memory_queue import Entry, MemoryQueue, Outcome
from services.queueing.part_window import Window
from services.queueing.records import InferReply, Lane
from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.keys import LaneKeys
from services.queueing.redis_streams.large_records import Room, TransferLimit
from services.queueing.redis_streams.outage import Outage
from services.telemetry.metrics import Metrics

GONE_AFTER_LOOKS = 3
CLOGGED_BYTES = 64 * 2**20
"""Limit on outcomes that wait for delivery. Above it, no request is taken; if they are large and
travel in pieces, none of the lanes that have any."""
LARGE_PAYLOAD_BYTES = 144 * 2**20
"""Limit on large payloads and outcomes that a worker holds while it fetches, over all its lanes. A
lane has room for one of the largest requests, two lanes for one each."""


class Phase(Enum):
    """Phases of a lane on one worker, in order."""

    JOINING = auto()
    """Redis does not know of this worker yet."""
    SERVING = auto()
    """Gateways may send requests."""
    LEAVING = auto()
    """Takes what no other worker would take, and then leaves."""
    HANDING_BACK = auto()
    """Takes nothing, and returns the requests that have not begun."""
    LEFT = auto()
    """Holds nothing any more."""

    @property
    def is_staying(self) -> bool:
        """True before the lane begins to leave."""
        return self in (Phase.JOINING, Phase.SERVING)


class HoldingLane(Protocol):
    """The interface of the lane that holds a request."""

    @property
    def lane(self) -> Lane:
        """The version whose requests it takes."""

    @property
    def keys(self) -> LaneKeys:
        """Its keys in Redis."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that this worker reads."""

    def count_unwritten(self, held: "Held", size: int) -> None:
        """Counts the bytes of a large outcome that is on its way to Redis."""

    def fail(self, held: "Held", error: ServingError) -> None:
        """Ends a request whose answer cannot be written."""


@dataclass(slots=True, eq=False)
class Held:
    """A request that was taken from its stream and has not been answered.

    Attributes:
        stream: the number of its stream; 1 is the lane's first.
        gateway: gateway that sent it.
        number: number of it at the gateway.
        taken_at: `time.monotonic()` second.
        suspect: True if it runs alone, because a worker died with it.
        payload_key: key of its payload, if it is large.
        payload_bytes: that it takes of the worker's room for large payloads.
        outcome_key: key of its outcome, if that is large.
        state: of a job, once it is over.
        entry: in this process's own queue.
        window: of its parts, once it has given one of several answers.
    """

    lane: HoldingLane
    stream: int
    stream_id: bytes
    gateway: str
    number: int
    taken_at: float
    suspect: bool
    payload_key: str = ""
    payload_bytes: int = 0
    outcome_key: str = ""
    state: str = ""
    entry: Entry | None = None
    window: Window | None = None

    @property
    def stream_key(self) -> str:
        """The name of its stream."""
        return self.lane.streams[self.stream - 1]


@dataclass(slots=True, kw_only=True)
class Downlink:
    """State that the lanes of one worker share.

    Attributes:
        redis: for commands that do not block.
        worker: its name.
        queue: its own, where the requests wait for a batch.
        answer: hands an outcome over and lets the request go; None only lets it go.
        give: hands over one of several answers, which is not the last.
        clock_s: Redis' clock less `time.monotonic()`, as far as is known.
        gateways: by name, the number of successive checks that did not find it alive.
        metrics: of the process.
        outage: tracker of faults of Redis.
        files: of this host.
        suspect: the one that runs, if any.
        silent_at: when Redis did not answer last; a `time.monotonic()` second.
        is_clogged: True if more outcomes wait for delivery than this process can hold.
        unwritten_bytes: bytes of large outcomes that are being written to Redis.
        keeping: held by the lane that mentions what it holds and takes over what others left (only
            one suspect runs), or that leaves something to others.
        room: for large payloads and outcomes.
        reading: limit on large payloads that are fetched at once.
        look: set when there may be something to take over.
        quiet: set when a lane has ended, or nothing is under way any more.
    """

    redis: Commands
    worker: str
    queue: MemoryQueue
    metrics: Metrics
    outage: Outage
    files: HostFiles
    answer: Callable[[Held, Outcome | None], None] = field(init=False)
    give: Callable[[Held, InferReply], None] = field(init=False)
    look: asyncio.Event = field(default_factory=asyncio.Event)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    clock_s: float = 0.0
    gateways: dict[str, int] = field(default_factory=dict)
    suspect: Held | None = None
    silent_at: float = -math.inf
    is_clogged: bool = False
    unwritten_bytes: int = 0
    keeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    room: Room = field(default_factory=lambda: Room(LARGE_PAYLOAD_BYTES))
    reading: TransferLimit = field(default_factory=TransferLimit)

    def is_gone(self, gateway: str) -> bool:
        """Returns True if a gateway died: one check is not enough, Redis may have lost it."""
        return self.gateways.get(gateway, 0) >= GONE_AFTER_LOOKS


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """Load of a lane over all workers, from Redis."""

    waiting: int
    """Requests that no worker has taken."""
    taken: int
    """Requests that workers have taken and not answered."""
    oldest_s: float
    """The age of the oldest; 0 when there is none."""
