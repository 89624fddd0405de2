"""An edge's side of the queue to the model process: sends requests, and hands over their outcomes.

In: entries of the edge's own queue. Out: their outcomes; the versions that are served.

Rules:
- the edge keeps every entry that it has sent. When the model process ends, each is answered at once
  with an error that says so, and new ones are refused until there is a link again;
- a full ring or arena refuses a request at once: nothing waits here, but small requests for the
  end of the turn, to be merged (`merged_requests.py`);
- an entry that dies is told to the model process; one that expires is not: the deadline is the same
  in both.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from flambeau.protocol.tensors import Array
from services.errors import (
    PayloadTooLargeError,
    QueueFullError,
    QueueUnavailableError,
    ServingError,
    WorkerProcessDiedError,
)
from services.queueing.arriving_parts import ArrivingParts
from services.queueing.fleet import fleet_view
from services.queueing.fleet_directory import FleetDirectory
from services.queueing.memory_queue import Entry, Outcome
from services.queueing.merged_requests import (
    MergedRequests,
    may_be_due_to_one,
    merged_request,
    refuse_each,
    replies,
    rows_that_merge,
)
from services.queueing.records import InferReply, InferRequest, Lane
from services.queueing.redis_streams.wire import error_of_kind
from services.queueing.shared_memory.link import Link
from services.queueing.shared_memory.link_memory import LinkMemory, make_memory, send_memory
from services.queueing.shared_memory.messages import (
    ActedMessage,
    ActMessage,
    CancelMessage,
    FailureMessage,
    LaneMessage,
    LeftMessage,
    Message,
    ReadMessage,
    ReleasedMessage,
    ReplyMessage,
    RequestMessage,
    SeenMessage,
    TensorMessage,
    ToEdge,
    ViewMessage,
    decode_to_edge,
    decode_view,
)
from services.queueing.shared_memory.tensor_blocks import (
    NoRoomError,
    arrays_inside,
    is_in_one_step,
    is_small,
    joined_records,
    records_inside,
)
from services.readiness import Look

if TYPE_CHECKING:
    from services.queueing.shared_memory.link import Steps


class ModelLink:
    """The link of one edge, through the lives of several model processes; an intake for all lanes.

    Args:
        arena_bytes: bytes of tensors on their way, each way.
        look: called with what is served and missing, whenever that has changed.
        lost: called when the model process has ended.
        left: called with the tokens that are left of shared rates.
        turned: called in each turn of the loop in which requests came or went.

    Attributes:
        fleet: applies what the model process serves; set once the queue exists.
        is_up: True while there is a model process whose versions are known.
    """

    waiting = 0
    """The model process counts those that wait, for all edges."""

    def __init__(
        self,
        arena_bytes: int,
        look: Callable[[Look], None],
        lost: Callable[[], None],
        left: Callable[[list[tuple[str, float, float]]], None] = lambda _: None,
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        self.fleet: FleetDirectory
        self.is_up = False
        self._arena_bytes = arena_bytes
        self._look, self._was_lost, self._left = look, lost, left
        self._turned = turned
        self._link: Link | None = None
        self._entries: dict[int, Entry] = {}
        self._merging = MergedRequests()
        self._merged: dict[int, list[Entry]] = {}
        """By the number of a merged request, its entries, which are in `_entries`, too."""
        self._lanes: dict[Lane, int] = {}
        """Numbers of lanes on this link."""
        self._next = 1
        self._acts: dict[int, asyncio.Future[None]] = {}
        """Acts of callers that load and unload models, until they are done."""

    async def act(self, act: str, model: str, dependents: bool = False) -> None:
        """Has the model process load or unload a model; as `ModelControl.act`.

        Raises:
            ServingError: it cannot be loaded, or there is no model process.
        """
        if self._link is None:
            raise QueueUnavailableError("the model process is being started; retry the call soon")
        number = self._next
        self._next += 1
        done = self._acts[number] = asyncio.get_running_loop().create_future()
        self.send(ActMessage(number, act, model, dependents))
        try:
            await done
        finally:
            del self._acts[number]

    def attach(self, end: socket.socket) -> None:
        """Begins with a new model process, at the other end of a socket pair.

        Raises:
            OSError: no descriptor or memory is free; the socket is closed.
        """
        descriptor = -1
        try:
            descriptor = make_memory(self._arena_bytes)
            memory = LinkMemory(descriptor, is_edge=True)
            with contextlib.suppress(OSError):  # it has ended already, and the link notices
                send_memory(end, descriptor)
        except OSError:
            end.close()
            raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self._lanes.clear()
        self._link = Link(
            end, memory, decode_to_edge, self._take, self._lost, self._turned, self._gather,
            is_edge=True,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the link; what it holds is answered with an error."""
        if self._link is not None:
            self._link.close()
            self._fail_all()

    def _lost(self) -> None:
        self._link, self.is_up = None, False
        self._fail_all()
        self._turned()
        self._was_lost()

    def _fail_all(self) -> None:
        for done in self._acts.values():
            if not done.done():
                done.set_exception(
                    WorkerProcessDiedError(
                        "the model process ended meanwhile; another is being started: call again"
                    )
                )
        entries, self._entries = self._entries, {}
        self._merged.clear()
        self._merging = MergedRequests()
        for entry in entries.values():
            entry.finish(
                WorkerProcessDiedError(
                    f"the model process ended while it had this request to model "
                    f"{entry.request.lane}; another is being started: send the request again"
                )
            )

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that this edge's tensors take."""
        return 0 if self._link is None else self._link.writer.used_bytes

    def send(self, message: Message) -> None:
        """Sends news, if there is a model process."""
        if self._link is not None:
            self._link.send(message)

    def accept(self, entry: Entry) -> None:
        """Sends an entry, with all others of this turn of the loop, or refuses it."""
        link = self._link
        if link is None or not self.is_up:
            entry.finish(
                QueueUnavailableError("the model process is being started; retry the request soon")
            )
            return
        if link.is_clogged:
            entry.refuse(QueueFullError("the ring to the model process is full; retry later"))
            return
        number = self._next
        self._next = number + 1
        entry.order = number
        if self._merging.add(entry):
            self._entries[number] = entry
            link.flush_soon()
            return
        request = entry.request
        inputs = records_inside(request.inputs)
        if inputs is None and not is_small(request.inputs):
            self._entries[number] = entry
            link.work(self._in_steps(link, entry, number))
            return
        try:
            inputs = inputs or link.writer.records(request.inputs)
        except NoRoomError as error:
            entry.refuse(self._no_room(link, error))
            return
        self._entries[number] = entry
        link.send(self._message(number, request, inputs))

    def _in_steps(self, link: Link, entry: Entry, number: int) -> "Steps":
        """Places the tensors of a large request, a step a turn, and sends it."""
        steps = link.writer.records_in_steps(entry.request.inputs)
        try:
            while not entry.dead:
                try:
                    next(steps)
                except StopIteration as end:
                    link.send(self._message(number, entry.request, end.value))
                    return
                yield
        except NoRoomError as error:
            self._entries.pop(number, None)
            entry.refuse(self._no_room(link, error))
        finally:
            steps.close()

    def _gather(self) -> None:
        """Sends the requests of this turn that wait to be merged."""
        for entries in self._merging.take():
            first = entries[0]
            number = int(first.order)
            if len(entries) > 1:
                number = self._next
                self._next += 1
                self._merged[number] = entries
            self._send_merged(number, entries)

    def _send_merged(self, number: int, entries: list[Entry]) -> None:
        requests = [entry.request for entry in entries]
        if len(requests) == 1:
            request = requests[0]
            inputs = records_inside(request.inputs) or joined_records(requests)
        else:
            request, inputs = merged_request(requests), joined_records(requests)
        self.send(self._message(number, request, inputs))

    def _message(
        self, number: int, request: InferRequest, inputs: tuple[TensorMessage, ...]
    ) -> RequestMessage:
        lane = self._lanes.get(request.lane)
        if lane is None:
            lane = self._lanes[request.lane] = len(self._lanes)
            self.send(LaneMessage(lane, request.lane))
        return RequestMessage(
            number, lane, request.request_id, inputs, request.rows, request.deadline,
            request.priority, request.length, tuple(request.outputs), request.trace,
            request.sequence, request.accuracy, request.merged,
        )  # fmt: skip

    def _no_room(self, link: Link, error: NoRoomError) -> ServingError:
        if not link.writer.fits(error.nbytes):
            return PayloadTooLargeError(
                f"tensors of {error.nbytes} bytes are larger than the memory that this process "
                "shares with the model process; raise max_buffered_bytes"
            )
        return QueueFullError(
            f"the memory shared with the model process has no room for {error.nbytes} bytes; "
            "retry later, or raise max_buffered_bytes"
        )

    def discard(self, entry: Entry, reason: str) -> None:
        """Tells that an entry has died."""
        if self._entries.pop(int(entry.order), None) is not None:
            if reason == "expired":
                self._turned()
            else:
                self.send(CancelMessage(int(entry.order)))

    def _take(self, message: ToEdge) -> int:
        """Handles a message; returns the number of requests that it is about."""
        if type(message) is ReplyMessage:
            if (merged := self._merged.pop(message.number, None)) is not None:
                self._answer_merged(merged, message)
                return len(merged)
            entry = self._entries.get(message.number)
            outputs = arrays_inside(message.outputs)
            if outputs is None:
                self._read_large(entry, message)
            elif entry is not None:
                self._answer(entry, message, outputs)
        elif type(message) is FailureMessage:
            error = error_of_kind(message.kind, message.text)
            if (merged := self._merged.pop(message.number, None)) is not None:
                self._fail_merged(merged, error)
                return len(merged)
            entry = self._entries.pop(message.number, None)
            if entry is not None:
                (entry.refuse if entry.window is None else entry.finish)(error)
        elif self._link is None:
            pass
        elif type(message) is ReleasedMessage:
            self._link.writer.free(message.blocks)
        elif type(message) is ViewMessage:
            self._link.work(self._apply(self._link, message))
        elif type(message) is LeftMessage:
            self._left(message.left)
        elif type(message) is ActedMessage:
            self._acted(message)
        return 1

    def _acted(self, message: ActedMessage) -> None:
        done = self._acts.get(message.number)
        if done is None or done.done():  # its caller has gone
            return
        if message.kind:
            done.set_exception(error_of_kind(message.kind, message.text))
        else:
            done.set_result(None)

    def _answer_merged(self, merged: list[Entry], message: ReplyMessage) -> None:
        assert self._link is not None
        lane = merged[0].request.lane
        self._merging.learn(lane, message, is_only=message.is_last)
        if not message.is_last:  # a model with several answers to a request
            self._link.reader.skip(message.outputs)
            self.send(CancelMessage(message.number))
            self._send_one_by_one(merged)
            return
        inside = arrays_inside(message.outputs)
        outputs = self._link.reader.arrays(message.outputs) if inside is None else inside
        for entry, reply in replies(merged, message, outputs, copied=inside is None):
            self._finish(int(entry.order), entry, reply)

    def _fail_merged(self, merged: list[Entry], error: ServingError) -> None:
        if may_be_due_to_one(error):
            self._send_one_by_one(merged)
            return
        for entry in merged:
            self._entries.pop(int(entry.order), None)
        refuse_each(merged, error)

    def _send_one_by_one(self, merged: list[Entry]) -> None:
        for entry in merged:
            if not entry.dead:
                self._send_merged(int(entry.order), [entry])

    def _read_large(self, entry: Entry | None, message: ReplyMessage) -> None:
        """Reads outputs that have blocks: those of a dead entry to free them."""
        assert self._link is not None
        if entry is None:
            self._link.reader.skip(message.outputs)
        elif is_in_one_step(message.outputs):
            self._answer(entry, message, self._link.reader.arrays(message.outputs))
        else:
            self._link.work(self._read_in_steps(self._link, entry, message))

    def _read_in_steps(self, link: Link, entry: Entry, message: ReplyMessage) -> "Steps":
        outputs = yield from link.reader.arrays_in_steps(message.outputs)
        self._answer(entry, message, outputs)

    def _answer(self, entry: Entry, message: ReplyMessage, outputs: dict[str, Array]) -> None:
        is_only = message.is_last and not message.part
        self._merging.learn(entry.request.lane, message, is_only=is_only)
        reply = InferReply(
            lane=entry.request.lane,
            outputs=outputs,
            datatypes=message.datatypes,
            batch_rows=message.batch_rows,
            queue_s=message.queue_s,
            execution_s=message.execution_s,
            number=message.part,
            is_last=message.is_last,
        )
        if is_only:
            self._finish(message.number, entry, reply)
            return
        window = entry.window
        if window is None:
            window = entry.window = ArrivingParts(partial(self._tell_read, entry))
        assert isinstance(window, ArrivingParts)
        for one in window.arrived(reply):
            if one.is_last:
                self._finish(message.number, entry, one)
            else:
                entry.part(one)

    def _finish(self, number: int, entry: Entry, outcome: Outcome) -> None:
        self._entries.pop(number, None)
        entry.finish(outcome)

    def _tell_read(self, entry: Entry) -> None:
        assert isinstance(entry.window, ArrivingParts)
        self.send(ReadMessage(int(entry.order), entry.window.read))

    def _apply(self, link: Link, message: ViewMessage) -> Generator[None, None, None]:
        """Applies a view; behind the large records before it, and in a turn of its own."""
        arrays = link.reader.arrays([message.view])
        view = decode_view(arrays.pop(message.view.name).tobytes())
        served = fleet_view([view.announcement])
        self._gather()  # what waits may be for a lane that this view does not have
        self._merging.most_rows = rows_that_merge(served.versions.values())
        self.fleet.apply(served)
        self.is_up = True
        self._look(view.look)
        link.send(SeenMessage(view.number))
        yield
