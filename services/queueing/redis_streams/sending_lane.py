"""The gateway's side of one lane: sends entries to Redis, where workers take them.

Rules:
- all ready entries go in one round trip, and a lane has one round trip in flight at a time: under
  load, each carries more;
- a request that Redis does not confirm is refused at once (503); if its outcome comes all the same,
  it is dropped;
- a dead entry leaves its stream, and the worker that may have it is notified;
- small requests to a fast model that go in one trip are merged (`merged_entries.py`);
- a large payload is in Redis before its entry is sent, or in a file if all workers share the host,
  and delays no other entry;
- a request whose file a worker could not read is sent again through Redis;
- workers get the number of parts that were read: again every few seconds, for a message may be
  lost.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial

from redis.exceptions import OutOfMemoryError, RedisError

from services.errors import ServingError
from services.queueing.arriving_parts import ArrivingParts
from services.queueing.memory_queue import Entry, Outcome
from services.queueing.merged_entries import MergedEntries
from services.queueing.records import HIGHEST_PRIORITY, LOWEST_PRIORITY, InferReply, Lane
from services.queueing.redis_streams.keys import LaneKeys
from services.queueing.redis_streams.large_records import push_to, write_pieces
from services.queueing.redis_streams.outage import refused
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.step_sender import (
    LOST_AFTER_MISSES,
    StepSender,
    sequence_lost,
)
from services.queueing.redis_streams.uplink import Sent, Uplink
from services.queueing.redis_streams.wire import (
    WireError,
    bytes_of,
    encode_reference,
    encode_request,
    file_parts,
    fits_a_file,
    is_large,
    request_pieces,
)

AT_ONCE = 256
"""Requests in one trip."""
AT_ONCE_BYTES = 4 * 2**20
"""After so many bytes a trip takes no more: Redis does nothing else meanwhile."""
PAYLOAD_GRACE_S = 60
"""Time that a large payload outlives its request's deadline."""
REFUSED_AT_ONCE = 32
"""Requests that are refused in one turn of the event loop: an answer takes some 30 µs."""


_Packet = tuple[Entry, str]
"""An entry that is ready to be sent, and the key of its payload, if it is large."""


class SendingLane:
    """An intake whose requests run in other processes."""

    def __init__(self, uplink: Uplink, lane: Lane) -> None:
        self.lane = lane
        self._uplink = uplink
        self._keys = LaneKeys(lane)
        self._enqueue_keys = (self._keys.workers, *self._keys.streams)
        self._enqueue, self._missing = Script("enqueue"), Script("missing")
        self._steps = StepSender(self._keys)
        self._ready_steps: deque[tuple[Entry, str, bool]] = deque()
        """Each with the key of its payload, and whether it is sent again."""
        self._outbox: deque[_Packet] = deque()
        self._merging = MergedEntries(
            lane, uplink.merged_rows, self._withdraw_soon, partial(self._put, again=True)
        )
        self._lost: deque[Entry] = deque()
        """Accepted requests that Redis lost, until the next check."""
        self._again: deque[_Packet] = deque()
        """Packets of lost requests, to be sent again now."""
        self._writing: set[asyncio.Task[None]] = set()
        """Tasks that write large payloads."""
        self._files: dict[Entry, str] = {}
        """Names of the files with their tensors."""
        self._sent: dict[Entry, Sent] = {}
        self._withdrawn: list[Sent] = []
        self._read: set[Entry] = set()
        """Entries whose callers have read parts since that was last published."""
        self._trip: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Entries that are not in Redis yet."""
        ready = len(self._outbox) + len(self._again) + len(self._ready_steps)
        return ready + self._merging.waiting + len(self._lost) + len(self._writing)

    def accept(self, entry: Entry) -> None:
        """Sends an entry, with all others of this turn of the loop."""
        if self._uplink.refusal is not None:
            entry.finish(self._uplink.refusal)
            return
        if self._merging.add(entry):
            self._start_trips()
        else:
            self._put(entry, again=False)

    def discard(self, entry: Entry, reason: str) -> None:
        """Withdraws a dead entry; one that was not sent yet is never sent."""
        self._merging.discard(entry)
        self._withdraw_soon(entry)

    def _withdraw_soon(self, entry: Entry) -> None:
        sent = self._forget(entry)
        if sent is not None and sent.stream_id is not None:
            self._withdrawn.append(sent)
            self._start_trips()

    def answered(self, sent: Sent, outcome: Outcome) -> None:
        """Handles an outcome: the only one of a request, one of several, or its error."""
        entry = sent.entry
        if isinstance(outcome, InferReply):
            self._merging.learn(outcome)
            if outcome.number or not outcome.is_last:
                self._arrived(entry, outcome)
                return
        had_file = entry in self._files
        self._forget(entry)
        if had_file and isinstance(outcome, WireError) and entry.window is None and not entry.dead:
            self._put(entry, again=True)  # a worker of another host has taken it, for example
            return
        if isinstance(outcome, ServingError) and entry.window is None:
            entry.refuse(outcome)
        else:
            entry.finish(outcome)

    def _arrived(self, entry: Entry, reply: InferReply) -> None:
        """Hands over one of several answers, and those that waited for it."""
        window = entry.window
        if window is None:
            window = entry.window = ArrivingParts(partial(self._report_read, entry))
        assert isinstance(window, ArrivingParts)
        for one in window.arrived(reply):
            if one.is_last:
                self._forget(entry)
                entry.finish(one)
            else:
                entry.part(one)

    def _report_read(self, entry: Entry) -> None:
        """Has the worker informed of the number of parts that were read."""
        self._read.add(entry)
        self._start_trips()

    def report_read_again(self) -> None:
        """Publishes once more how many parts were read."""
        self._read.update(entry for entry in self._sent if entry.window is not None)
        self._start_trips()

    async def send_lost_again(self) -> None:
        """Sends confirmed requests again that Redis lost before their outcome came.

        An outcome on its way looks the same, so a request must be missed twice.

        Raises:
            RedisError: Redis is out of reach.
        """
        confirmed = [s for s in self._sent.values() if s.stream_id is not None and s.stream]
        await self._fail_lost_steps()
        for start in range(0, len(confirmed), AT_ONCE):
            asked = confirmed[start : start + AT_ONCE]
            names = [part for sent in asked for part in (sent.stream, sent.stream_id)]
            missing = await self._missing(self._uplink.redis, self._keys.streams, *names)
            for sent, is_missing in zip(asked, missing, strict=True):
                sent.missed = sent.missed + 1 if is_missing else 0
                if sent.missed > 1 and self._forget(sent.entry) is not None:
                    self._lost.append(sent.entry)
        lost, self._lost = self._lost, deque()
        for entry in lost:
            self._put(entry, again=True)

    async def _fail_lost_steps(self) -> None:
        """Answers the steps whose workers are gone, and those that Redis has lost.

        A first step is sent again, to another worker: nothing of its sequence exists yet. It is
        sent twice at most, so that a step that kills its worker kills no more than two.
        """
        steps = [s for s in self._sent.values() if s.stream_id is not None and not s.stream]
        for start in range(0, len(steps), AT_ONCE):
            asked = steps[start : start + AT_ONCE]
            names = [(sent.worker, sent.stream_id or b"") for sent in asked]
            found = await self._steps.lost(self._uplink.redis, names)
            lost: list[tuple[Sent, object]] = []
            for sent, is_lost in zip(asked, found, strict=True):
                sent.missed = sent.missed + 1 if is_lost else 0
                if sent.missed < LOST_AFTER_MISSES or self._forget(sent.entry) is None:
                    continue
                step = sent.entry.request.sequence
                if step is not None and step.is_start and not sent.again:
                    self._put(sent.entry, again=True)
                else:
                    lost.append((sent, b"lost"))
            await self._refuse(lost)
        if self._withdrawn:  # payloads of lost steps
            self._start_trips()

    def _put(self, entry: Entry, *, again: bool) -> None:
        """Makes an entry ready to be sent."""
        if not is_large(entry.request.inputs):
            self._make_ready(entry, "", again)
            return
        task = asyncio.get_running_loop().create_task(self._write_payload(entry, again))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_payload(self, entry: Entry, again: bool) -> None:
        """Writes a large payload under a key of its own, and then makes its entry ready."""
        uplink = self._uplink
        key = f"{self._keys.payload}:{uplink.gateway}:{next(uplink.numbers)}"
        async with uplink.writing.of(bytes_of(entry.request.inputs)):
            if not again and await self._write_file(entry):
                self._make_ready(entry, "", again)
                return
            left_s = max(entry.request.deadline - time.monotonic(), 0)
            lives_ms = int((left_s + PAYLOAD_GRACE_S) * 1000)
            pieces = request_pieces(entry.request)
            wanted = itertools.takewhile(lambda _: not entry.dead, pieces)
            try:
                await write_pieces(wanted, lives_ms, push_to(uplink.redis, key))
                if entry.dead:
                    await uplink.redis.send("UNLINK", key)
                    return
            except RedisError as error:
                with contextlib.suppress(RedisError):  # then it is forgotten a little later
                    await uplink.redis.send("UNLINK", key)
                if not isinstance(error, OutOfMemoryError):
                    uplink.record_trip(error)
                if again:  # it was accepted: the next look tries again
                    self._lost.append(entry)
                else:
                    entry.refuse(self._refusal(error, entry))
                return
        self._make_ready(entry, key, again)

    async def _write_file(self, entry: Entry) -> bool:
        """Writes tensors for workers of this host. Returns whether these are all there are."""
        uplink, request = self._uplink, entry.request
        workers = uplink.workers.get(self.lane.default)
        if request.sequence is not None or not fits_a_file(request.inputs):
            return False  # a step is not sent again
        if not workers or not uplink.files.reaches(workers):
            return False
        name, parts = f"request-{next(uplink.numbers)}", file_parts(request.inputs)
        if not await uplink.files.write(uplink.gateway, name, parts, lambda: not entry.dead):
            return False
        self._files[entry] = name
        return True

    def _make_ready(self, entry: Entry, payload_key: str, again: bool) -> None:
        if entry.request.sequence is not None:
            self._ready_steps.append((entry, payload_key, again))
        else:
            (self._again if again else self._outbox).append((entry, payload_key))
        self._start_trips()

    def _forget(self, entry: Entry) -> Sent | None:
        if file := self._files.pop(entry, ""):
            self._uplink.files.remove(file)
        sent = self._sent.pop(entry, None)
        if sent is not None:
            self._uplink.unanswered.pop(sent.number, None)
        return sent

    @property
    def _ready(self) -> bool:
        """True if something is ready for a trip."""
        return bool(self._again or self._outbox or self._merging.waiting or self._ready_steps)

    def _start_trips(self) -> None:
        if self._trip is None:
            self._trip = asyncio.get_running_loop().create_task(self._run_trips())

    async def _run_trips(self) -> None:
        try:
            while self._ready or self._withdrawn or self._read:
                await self._send()
                await self._send_steps()
                await self._withdraw()
                await self._publish_read()
        finally:
            self._trip = None

    async def _send(self) -> None:
        """One trip: each entry of it is in Redis afterwards, or has been refused."""
        uplink = self._uplink
        self._outbox += [(entry, "") for entry in self._merging.take()]
        if uplink.refusal is not None:
            self._lost += [entry for entry, _ in self._again]
            self._again.clear()
            await self._refuse_outbox()
        trip, arguments = self._pack()
        if not trip:
            return
        delay_us = int(uplink.row_s.get(self.lane, 0.0) * 1e6)
        enqueued = self._enqueue(
            uplink.redis, self._enqueue_keys, uplink.max_depth, delay_us, *arguments
        )
        results = await self._results(enqueued, len(trip))
        unsent: list[tuple[Sent, object]] = []
        for sent, result in zip(trip, results, strict=True):
            if isinstance(result, bytes) and result[:1].isdigit():
                self._confirm(sent, result)
            else:
                unsent.append((sent, result))
        await self._refuse(unsent)

    def _confirm(self, sent: Sent, stream_id: bytes) -> None:
        """Redis has a request."""
        sent.stream_id = stream_id
        if sent.entry.dead:  # it died on the way
            self._withdrawn.append(sent)

    async def _results(self, sending: Awaitable[Sequence[object]], count: int) -> Sequence[object]:
        """Returns what Redis answered to each of so many requests; an error for each if none."""
        try:
            return await sending
        except OutOfMemoryError as error:
            return [error] * count
        except RedisError as error:
            self._uplink.record_trip(error)
            return [error] * count

    async def _refuse(self, unsent: Sequence[tuple[Sent, object]]) -> None:
        """Answers requests that Redis did not accept, some in each turn of the loop."""
        count = 0
        for sent, result in unsent:
            self._forget(sent.entry)
            if sent.payload_key and not _is_unsure(result):
                self._withdrawn.append(sent)
            if sent.again and sent.stream:  # it was accepted: the next look tries again
                self._lost.append(sent.entry)
            else:
                sent.entry.refuse(self._refusal(result, sent.entry))
            count += sent.entry.request.merged
            if count >= REFUSED_AT_ONCE:
                count = 0
                await asyncio.sleep(0)

    async def _refuse_outbox(self) -> None:
        """Answers requests that are not sent, because Redis is out of reach."""
        count = 0
        while self._outbox and self._uplink.refusal is not None:
            entry, _ = self._outbox.popleft()
            self._forget(entry)
            entry.finish(self._uplink.refusal)
            count += entry.request.merged
            if count >= REFUSED_AT_ONCE:
                count = 0
                await asyncio.sleep(0)

    async def _send_steps(self) -> None:
        """One trip of steps, as `_send`."""
        uplink = self._uplink
        trip: list[Sent] = []
        steps: list[tuple[Entry, str, bytes]] = []
        room = AT_ONCE_BYTES
        while self._ready_steps and len(trip) < AT_ONCE and room > 0:
            entry, key, again = self._ready_steps.popleft()
            sent = Sent(next(uplink.numbers), entry, self, 0, key, again=again)
            if entry.dead:
                self._withdrawn += [sent] if key else []
                continue
            self._sent[entry] = uplink.unanswered[sent.number] = sent
            payload = encode_reference(key) if key else encode_request(entry.request)
            room -= len(payload)
            trip.append(sent)
            steps.append((entry, f"{uplink.gateway} {sent.number}", payload))
        if not trip:
            return
        results: Sequence[object]
        if uplink.refusal is not None:
            results = [b"refused"] * len(trip)
        else:
            enqueued = self._steps.send(uplink.redis, steps, uplink.max_depth)
            results = await self._results(enqueued, len(trip))
        unsent: list[tuple[Sent, object]] = []
        for sent, result in zip(trip, results, strict=True):
            if isinstance(result, tuple):
                stream_id, sent.worker = result
                self._confirm(sent, stream_id)
            else:
                unsent.append((sent, result))
        await self._refuse(unsent)

    def _pack(self) -> tuple[list[Sent], list[object]]:
        """Returns the next round trip's requests, and the script's arguments."""
        uplink = self._uplink
        trip: list[Sent] = []
        arguments: list[object] = []
        room = AT_ONCE_BYTES
        while (self._again or self._outbox) and len(trip) < AT_ONCE and room > 0:
            again = bool(self._again)
            entry, key = (self._again if again else self._outbox).popleft()
            request = entry.request
            number = next(uplink.numbers)
            # What waits for idle slots is taken last, and waits for them with its worker.
            stream = min(request.priority, LOWEST_PRIORITY) - HIGHEST_PRIORITY + 1
            sent = Sent(number, entry, self, stream, key, again=again)
            if entry.dead:
                self._withdrawn += [sent] if key else []
                continue
            file = self._files.get(entry, "")
            payload = encode_reference(key) if key else encode_request(request, file)
            room -= len(payload)
            self._sent[entry] = uplink.unanswered[number] = sent
            trip.append(sent)
            left_us = int((request.deadline - time.monotonic()) * 1e6)
            address = f"{uplink.gateway} {number}"
            arguments += (sent.stream, left_us, address, payload, int(again))
        return trip, arguments

    async def _withdraw(self) -> None:
        """Takes requests from their streams, and names them to the workers that may have them."""
        withdrawn, self._withdrawn = self._withdrawn, []
        if not withdrawn:
            return
        uplink, keys = self._uplink, self._keys
        trip = uplink.redis.trip()
        for sent in withdrawn:
            if sent.stream_id is not None:
                stream = keys.streams[sent.stream - 1] if sent.stream else keys.steps(sent.worker)
                trip.add("XDEL", stream, sent.stream_id)
            if sent.payload_key:
                trip.add("UNLINK", sent.payload_key)
        names = "\n".join(f"{uplink.gateway} {sent.number}" for sent in withdrawn)
        trip.add("PUBLISH", keys.notices, names)
        try:
            await trip.execute()
        except RedisError as error:
            uplink.record_trip(error)  # their deadlines end them

    async def _publish_read(self) -> None:
        """Names the parts that were read to the workers that may wait for that."""
        read, self._read = self._read, set()
        lines = [
            f"{self._uplink.gateway} {sent.number} {entry.window.read}"
            for entry in read
            if (sent := self._sent.get(entry)) and isinstance(entry.window, ArrivingParts)
        ]
        if lines:
            try:
                await self._uplink.redis.send("PUBLISH", self._keys.notices, "\n".join(lines))
            except RedisError as error:
                self._uplink.record_trip(error)  # it is published again

    def _refusal(self, result: object, entry: Entry) -> ServingError:
        """Returns the error of an entry that Redis did not accept."""
        uplink = self._uplink
        if result == b"refused" and uplink.refusal is not None:
            return uplink.refusal
        if result == b"lost":
            return sequence_lost(entry)
        return refused(result, entry.request, uplink.max_depth)


def _is_unsure(result: object) -> bool:
    """Returns True if a request may be in Redis although that was not confirmed."""
    return isinstance(result, RedisError) and not isinstance(result, OutOfMemoryError)
