"""The model process's side of the queue to its edges: runs their requests, and tells them the rest.

In: messages of edges; the lanes, and the directory of what is served here. Out: entries of this
process's own queue, so that one place forms the batches of all edges; outcomes, and views of the
directory, to the edges.

Rules:
- a view goes to every edge whenever the directory or the readiness has changed, once a turn;
- a lane closes when every edge has seen a view without it: requests that were on their way are
  still run;
- outcomes that the memory has no room for wait here, and delay no other request's;
- the requests of an edge that has ended are cancelled. Its memory stays until no batch views it.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from flambeau.protocol.tensors import Array, TensorError
from services.errors import BackendError, ServingError, UnsupportedError
from services.queueing.directory import Directory
from services.queueing.fleet import Announcement, announced, announced_traffic
from services.queueing.lane_queue import WorkerIntake
from services.queueing.memory_queue import Entry, MemoryQueue, Outcome
from services.queueing.part_window import PartWindow
from services.queueing.records import InferReply, InferRequest, Lane
from services.queueing.shared_memory.link import Link, Steps
from services.queueing.shared_memory.link_memory import LinkMemory, receive_memory
from services.queueing.shared_memory.messages import (
    ActedMessage,
    ActMessage,
    CancelMessage,
    FailureMessage,
    FreedMessage,
    LaneMessage,
    LeftMessage,
    MissedMessage,
    ReadMessage,
    ReplyMessage,
    RequestMessage,
    SeenMessage,
    SpentMessage,
    TensorMessage,
    ToModel,
    View,
    ViewMessage,
    decode_to_model,
    encode,
)
from services.queueing.shared_memory.tensor_blocks import (
    NoRoomError,
    arrays_inside,
    is_in_one_step,
    is_small,
    records_inside,
)
from services.readiness import Look


async def _no_act(act: str, model: str, dependents: bool) -> None:
    raise UnsupportedError(f"this process does not {act} models")


class EdgeLinks:
    """The links of the model process to all edges; the queue of its lanes.

    Args:
        queue: queue of this process.
        directory: what it serves.
        spend: takes tokens of shared rates that an edge has spent, and returns those that are left.
        gone: called when an edge has ended.
        act: loads or unloads a model for a caller of an edge; as `ModelControl.act`.
    """

    def __init__(
        self,
        queue: MemoryQueue,
        directory: Directory,
        spend: Callable[[str, float, float], float] = lambda *_: 0.0,
        gone: Callable[[], None] = lambda: None,
        act: Callable[[str, str, bool], Awaitable[None]] = _no_act,
    ) -> None:
        self._gone = gone
        self._act = act
        self._acting: set[asyncio.Task[None]] = set()
        self._seen_by_all: list[tuple[Callable[[], None], int]] = []
        """Called once all edges have seen the view of a number."""
        self.queue, self.directory, self.spend = queue, directory, spend
        self._links: set[EdgeLink] = set()
        self._look = Look(started=False)
        self._number = 0
        self._asked = False
        self._closing: dict[Lane, tuple[Callable[[], None], int]] = {}
        """Lanes that close, with the number of the view that does not have them."""
        directory.changed = self._publish_soon

    @property
    def count(self) -> int:
        """Number of edges."""
        return len(self._links)

    @property
    def used_bytes(self) -> int:
        """Bytes of the arenas that this process's tensors take."""
        return sum(link.link.writer.used_bytes for link in self._links)

    @property
    def max_depth(self) -> int:
        """Most entries that may wait for one lane."""
        return self.queue.max_depth

    def open(self, lane: Lane, intake: WorkerIntake) -> None:
        """Admits requests for a lane, from all edges."""
        if (closing := self._closing.pop(lane, None)) is not None:
            closing[0]()  # requests that are on their way to it go to the new intake
        self.queue.open(lane, intake)

    def close(self, lane: Lane, closed: Callable[[], None]) -> None:
        """Closes a lane that the directory withdraws in this turn, once all edges know."""
        self._closing[lane] = closed, self._number + 1
        self._publish_soon()

    def look(self, look: Look) -> None:
        """Tells the edges what is served and missing."""
        if look != self._look:
            self._look = look
            self._publish_soon()

    def attach(self, end: socket.socket) -> None:
        """Begins with a new edge, at the other end of a socket pair."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(end, self._receive_memory, end)

    def _receive_memory(self, end: socket.socket) -> None:
        descriptor = None
        try:
            descriptor = receive_memory(end)
        except BlockingIOError:
            return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(end)
        if descriptor is None:  # the edge has ended already
            end.close()
            return
        try:
            memory = LinkMemory(descriptor, is_edge=False)
        except OSError:  # no descriptor is free just now: the edge asks again
            end.close()
            return
        finally:
            os.close(descriptor)
        link = EdgeLink(self, end, memory)
        self._links.add(link)
        link.publish(self._number, self.view())

    def lost(self, link: "EdgeLink") -> None:
        """Forgets an edge that has ended."""
        self._links.discard(link)
        self.settle()
        self._gone()

    def _publish_soon(self) -> None:
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._asked = False
        self._number += 1
        view = self.view()
        for link in self._links:
            link.publish(self._number, view)
        self.settle()

    def view(self) -> bytes:
        """Returns the encoded `View` of what is served now."""
        directory = self.directory
        versions = tuple(announced(served, {}) for served in directory.all_versions())
        models = {version.model for version in versions}
        live = {m: (0, v) for m in models if (v := directory.live_version(m)) is not None}
        aliases = {m: dict(found) for m in models if (found := directory.aliases(m))}
        started = self._look.started
        traffic = announced_traffic(directory.traffics(), models)
        announcement = Announcement("", started, versions, live, aliases=aliases, traffic=traffic)
        return encode(View(self._number, announcement, self._look))

    def settle(self) -> None:
        """Closes the lanes that no edge sends to any more."""
        seen = min((link.seen for link in self._links), default=self._number)
        for lane, (closed, number) in list(self._closing.items()):
            if seen >= number:
                del self._closing[lane]
                self.queue.close(lane, closed)

        for told, number in list(self._seen_by_all):
            if seen >= number:
                self._seen_by_all.remove((told, number))
                told()

    def act(self, link: "EdgeLink", message: ActMessage) -> None:
        """Loads or unloads a model; tells the edge once all edges know what is served then."""
        task = asyncio.get_running_loop().create_task(self._acted(link, message))
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)

    async def _acted(self, link: "EdgeLink", message: ActMessage) -> None:
        answer = ActedMessage(message.number)
        try:
            await self._act(message.act, message.model, message.dependents)
        except ServingError as error:
            answer = ActedMessage(message.number, type(error).__name__, str(error))
        self._seen_by_all.append((partial(link.link.send, answer), self._number + 1))
        self._publish_soon()

    def end(self) -> None:
        """Closes all links; what they hold is cancelled."""
        for link in list(self._links):
            link.end()
        self._links.clear()
        self._publish_soon()


class EdgeLink:
    """The link to one edge.

    Attributes:
        seen: number of the newest view that the edge has applied.
    """

    def __init__(self, links: EdgeLinks, end: socket.socket, memory: LinkMemory) -> None:
        self._links = links
        self._queue = links.queue
        self.seen = -1
        self.held: dict[int, Held] = {}
        self.link = Link(end, memory, decode_to_model, self._take, self._lost, is_edge=False)
        self._lanes: dict[int, Lane] = {}
        self._unsent: deque[Callable[[], None]] = deque()
        """Sends again what had no room."""
        self._view: tuple[int, bytes] | None = None
        """The newest view, while there is no room for it."""

    def publish(self, number: int, view: bytes) -> None:
        """Sends a view; an older one that waits for room is dropped."""
        self._view = number, view
        self._send_view()

    def _send_view(self) -> None:
        if self._view is not None:
            with contextlib.suppress(NoRoomError):
                record = self.link.writer.record_of_bytes(self._view[1])
                self.link.send(ViewMessage(record))
                self._view = None

    def end(self) -> None:
        """Closes the link from this side."""
        self.link.close()
        self._cancel_all()

    def _lost(self) -> None:
        self._cancel_all()
        self._links.lost(self)

    def _cancel_all(self) -> None:
        held, self.held = self.held, {}
        for one in held.values():
            one.cancel()
        self._unsent.clear()

    def _take(self, message: ToModel) -> None:
        if type(message) is RequestMessage:
            inputs = arrays_inside(message.inputs)
            if inputs is not None:
                self._submit(message, inputs)
            else:
                self._read(message)
        elif type(message) is CancelMessage:
            held = self.held.pop(message.number, None)
            if held is not None:
                held.cancel()
        elif type(message) is ReadMessage:
            held = self.held.get(message.number)
            if held is not None and isinstance(held.window, PartWindow):
                held.window.read_up_to(message.count)
        elif type(message) is FreedMessage:
            self.link.writer.free(message.blocks)
            self._send_unsent()
        elif type(message) is LaneMessage:
            self._lanes[message.number] = message.lane
        elif type(message) is SeenMessage:
            self.seen = message.number
            self._links.settle()
        elif type(message) is MissedMessage:
            self._links.directory.miss(message.lane)
        elif type(message) is SpentMessage:
            spend = self._links.spend
            left = [(name, rate, spend(name, rate, spent)) for name, rate, spent in message.spent]
            self.link.send(LeftMessage(left))
        elif type(message) is ActMessage:
            self._links.act(self, message)

    def _read(self, message: RequestMessage) -> None:
        """Reads inputs that have blocks, or are texts."""
        held = self.held[message.number] = Held(self, message.number)
        held.has_blocks = True
        if is_in_one_step(message.inputs):
            self._submit(message, self.link.reader.arrays(message.inputs), held)
        else:
            self.link.work(self._read_in_steps(message, held))

    def _read_in_steps(self, message: RequestMessage, held: "Held") -> Steps:
        inputs = yield from self.link.reader.arrays_in_steps(message.inputs)
        if message.number in self.held:  # else it was cancelled meanwhile
            self._submit(message, inputs, held)

    def _submit(
        self, message: RequestMessage, inputs: dict[str, Array], held: "Held | None" = None
    ) -> None:
        number = message.number
        request = InferRequest(
            request_id=message.request_id,
            lane=self._lanes[message.lane],
            inputs=inputs,
            rows=message.rows,
            deadline=message.deadline,
            priority=message.priority,
            length=message.length,
            outputs=message.outputs,
            trace=message.trace,
            sequence=message.sequence,
            accuracy=message.accuracy,
            merged=message.merged,
        )
        if held is None:
            held = self.held[number] = Held(self, number, message.merged)
        held.entry = self._queue.submit(request, held.replied)

    def send_outcome(self, held: "Held", outcome: Outcome) -> None:
        """Sends a reply or an error; behind a large one of the same request."""
        if held.behind is not None:
            held.behind.append(outcome)
        elif isinstance(outcome, ServingError):
            self._send_failure(held, outcome)
        elif (inside := records_inside(outcome.outputs)) is not None:
            self._send_reply(held, outcome, inside)
        elif not is_small(outcome.outputs):
            held.behind = []
            self.link.work(self._send_in_steps(held, outcome))
        else:
            try:
                outputs = self.link.writer.records(outcome.outputs)
            except NoRoomError as error:
                self._send_later(held, outcome, error)
            except (TensorError, UnicodeError) as error:
                self._fail(held, outcome, error)
            else:
                self._send_reply(held, outcome, outputs)

    def _send_in_steps(self, held: "Held", outcome: InferReply) -> Steps:
        steps = self.link.writer.records_in_steps(outcome.outputs)
        try:
            while held.number in self.held:
                try:
                    next(steps)
                except StopIteration as end:
                    self._send_reply(held, outcome, end.value)
                    behind, held.behind = held.behind, None
                    self._send_behind(held, behind)
                    return
                yield
        except NoRoomError as error:
            self._send_later(held, outcome, error)
            return
        except (TensorError, UnicodeError) as error:
            self._fail(held, outcome, error)
        finally:
            steps.close()
        self._send_unsent()  # its blocks are free, and no message of the edge says so

    def _send_later(self, held: "Held", outcome: InferReply, error: NoRoomError) -> None:
        if self.link.writer.fits(error.nbytes):
            held.behind = held.behind or []
            self._unsent.append(partial(self._send_again, held, outcome))
        else:
            words = (
                f"model {outcome.lane} answers with {error.nbytes} bytes, more than the memory "
                "shared with this process; raise max_buffered_bytes"
            )
            self._fail(held, outcome, words)

    def _send_again(self, held: "Held", outcome: InferReply) -> None:
        if held.number in self.held:
            behind, held.behind = held.behind, None
            self.send_outcome(held, outcome)
            self._send_behind(held, behind)

    def _send_behind(self, held: "Held", behind: list[Outcome] | None) -> None:
        """Sends what waited behind a large reply."""
        for outcome in behind or ():
            if held.number in self.held:
                self.send_outcome(held, outcome)

    def _send_unsent(self) -> None:
        """Sends what has waited for room; what has none still waits again."""
        self._send_view()
        unsent, self._unsent = self._unsent, deque()
        for send in unsent:
            send()

    def _fail(self, held: "Held", outcome: InferReply, error: object) -> None:
        """Ends a request whose answer cannot be sent."""
        if held.entry is not None:
            held.entry.cancel()
        self._send_failure(
            held, BackendError(f"the answer of model {outcome.lane} cannot be written: {error}")
        )

    def _send_reply(
        self, held: "Held", reply: InferReply, outputs: tuple[TensorMessage, ...]
    ) -> None:
        if reply.is_last:
            self.held.pop(held.number, None)
            held.release_inputs()
        self.link.send(
            ReplyMessage(
                held.number, outputs, reply.datatypes, reply.batch_rows, reply.queue_s,
                reply.execution_s, reply.number, reply.is_last,
            ),
            held.merged,
        )  # fmt: skip

    def _send_failure(self, held: "Held", error: ServingError) -> None:
        if self.held.pop(held.number, None) is not None:
            message = FailureMessage(held.number, type(error).__name__, str(error))
            self.link.send(message, held.merged)


class Held:
    """A request of an edge in this process's queue.

    Attributes:
        number: number of the request on its link.
        merged: number of requests that it is.
        entry: None until its large tensors are read.
        window: window of its parts, if it has several answers.
        behind: outcomes that wait behind a large one; None while none is on its way.
        has_blocks: True if inputs lie in the arena.
    """

    __slots__ = ("_edge", "behind", "entry", "has_blocks", "merged", "number", "window")

    def __init__(self, edge: EdgeLink, number: int, merged: int = 1) -> None:
        self._edge = edge
        self.number, self.merged = number, merged
        self.entry: Entry | None = None
        self.window: object = None
        self.behind: list[Outcome] | None = None
        self.has_blocks = False

    def replied(self, outcome: Outcome) -> None:
        """Handles a reply or an error, on the event loop."""
        edge = self._edge
        if self.number in edge.held:
            if type(outcome) is InferReply and not outcome.is_last:
                self.window = outcome.window
            edge.send_outcome(self, outcome)

    def release_inputs(self) -> None:
        """Drops the blocks of a request that has run; its batch keeps it a little longer."""
        if self.entry is not None and self.has_blocks:
            self.entry.request = msgspec.structs.replace(self.entry.request, inputs={})

    def cancel(self) -> None:
        """Drops the request: nobody waits for it."""
        if self.entry is not None:
            self.entry.cancel()
