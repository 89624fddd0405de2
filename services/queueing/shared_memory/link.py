"""One end of the link between an edge and the model process: messages each way, until one dies.

In: messages of a turn of the loop. Out: the same messages at the other end, in order.

Rules:
- all messages of a turn go in few frames. The socket wakes the other side only where it sleeps; it
  is awake until a turn of its loop has brought nothing;
- nothing here blocks: messages that the ring has no room for are kept, and `is_clogged` says when
  they are too many;
- a turn takes few messages, so that a thousand of them do not hold the loop;
- the socket closes when the other process ends, in whatever way. What it has published by then is
  still taken.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from services.queueing.shared_memory.link_memory import LinkMemory
from services.queueing.shared_memory.messages import (
    FRAME_BYTES,
    FRAME_MESSAGES,
    FreedMessage,
    Message,
    ReleasedMessage,
    encode,
    framed,
)
from services.queueing.shared_memory.tensor_blocks import TensorReader, TensorWriter

logger = logging.getLogger("flambeau.link")

CLOGGED_BYTES = 16 * 1024 * 1024
"""Bytes of messages that may wait for room in the ring. A burst that fills it must not refuse the
requests of others. Both ends in one process carry so many in 55 ms if each has a tensor of 8 KiB;
of smaller ones, the limit of requests in flight is reached first."""
Steps = Generator[None, None, None]
"""Work on something large, a step a turn; it ends itself, or is closed with the link."""


class Link:
    """One end.

    Args:
        end: of the socket pair.
        memory: what both ends map.
        decode: decodes the messages of the other end.
        take: called with each of them; returns how many answers it was, if more than one.
        lost: called once, when the other process has ended.
        turned: called in each turn in which messages were sent or taken.
        gather: called before the messages of a turn go, to send what has waited for its end.
        is_edge: True at the edge's end.

    Attributes:
        writer: places tensors for the other end.
        reader: views those of the other end.
        is_lost: True once the other process has ended.
    """

    def __init__(
        self,
        end: socket.socket,
        memory: LinkMemory,
        decode: Callable[[bytes], list[Any]],
        take: Callable[[Any], int | None],
        lost: Callable[[], None],
        turned: Callable[[], None] = lambda: None,
        gather: Callable[[], None] = lambda: None,
        *,
        is_edge: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._outgoing, self._incoming = memory.outgoing, memory.incoming
        self._decode, self._take, self._lost = decode, take, lost
        self._turned, self._gather = turned, gather
        self._freed_message = FreedMessage if is_edge else ReleasedMessage
        self.writer = TensorWriter(memory)
        self.reader = TensorReader(memory, self._has_freed)
        self.is_lost = False
        self._outbox: deque[tuple[bytes, int]] = deque()
        """Encoded messages, each with the number of requests that it is about."""
        self._outbox_bytes = 0
        self._is_full = False
        """True while messages wait for room in the ring."""
        self._asked = self._looking = False
        self._work: deque[Steps] = deque()
        end.setblocking(False)
        self._loop.add_reader(end, self._readable)
        self._look_soon()

    @property
    def is_clogged(self) -> bool:
        """True while `CLOGGED_BYTES` of messages, or more, wait for room in the ring."""
        return self._is_full and self._outbox_bytes >= CLOGGED_BYTES

    def send(self, message: Message, requests: int = 1) -> None:
        """Sends a message with all others of this turn.

        Args:
            message: the message.
            requests: number of requests that it is about.
        """
        self._put_out(encode(message), requests)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Sends the messages of this turn at its end."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._flush)

    def _put_out(self, message: bytes, requests: int = 1) -> None:
        self._outbox.append((message, requests))
        self._outbox_bytes += len(message)

    def work(self, steps: Steps) -> None:
        """Works on something large: a step in each turn, one after another."""
        self._work.append(steps)
        if len(self._work) == 1:
            self._loop.call_soon(self._step)

    def close(self) -> None:
        """Ends the link from this side; `lost` is not called."""
        if not self.is_lost:
            self.is_lost = True
            self._loop.remove_reader(self._end)
            self._end.close()
            self._outbox.clear()
            work, self._work = self._work, deque()
            for steps in work:
                steps.close()
            # Without cycles, the memory goes with the last view of it, and waits for no collector.
            self._take = self._lost = self._turned = self._gather = _ignore
            self.reader.close()

    def _step(self) -> None:
        if self._work:
            steps = self._work[0]
            try:
                next(steps)
            except StopIteration:
                self._work.popleft()
            except Exception:
                logger.exception("a large record could not be carried over")
                self._work.popleft()
            if self._work:
                self._loop.call_soon(self._step)

    def _flush(self) -> None:
        self._gather()
        self._asked = False
        if self.is_lost:
            return
        if free := self.reader.take_free():
            self._put_out(encode(self._freed_message(free)))
        outbox = self._outbox
        while outbox:
            messages: list[tuple[bytes, int]] = []
            size = requests = 0
            while outbox and requests < FRAME_MESSAGES and size < FRAME_BYTES:
                messages.append(outbox.popleft())
                size += len(messages[-1][0])
                requests += messages[-1][1]
            if not self._outgoing.put(framed([message for message, _ in messages])):
                outbox.extendleft(reversed(messages))
                break
            self._outbox_bytes -= size
        self._is_full = bool(outbox)
        self._turned()
        if self._outgoing.must_wake():
            self._wake()

    def _wake(self) -> None:
        # It has not read what woke it before; or it has ended, and reading says so.
        with contextlib.suppress(OSError):
            self._end.send(b"w", socket.MSG_NOSIGNAL)

    def _readable(self) -> None:
        try:
            data = self._end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            if not self._looking:
                self._looking = True
                self._look()
        else:
            self._end_of_other()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Takes some messages; sleeps if there are none."""
        self._looking = False
        if self.is_lost:
            return
        if self._take_some() or not self._incoming.sleep():
            self._look_soon()

    def _take_some(self) -> bool:
        """Takes a frame or a few. Returns whether there was any."""
        taken = 0
        try:
            while taken < FRAME_MESSAGES and (frame := self._incoming.take()) is not None:
                for message in self._decode(frame):
                    taken += self._take(message) or 1
        except Exception:  # whatever the fault, what waits for the other end must be answered
            logger.exception("a link between processes is broken")
            lost = self._lost
            self.close()
            lost()
            return False
        if taken:
            self._turned()
            if self._incoming.must_wake():
                self._wake()
        if self._is_full and not self.is_lost:
            self._flush()
        return taken > 0

    def _end_of_other(self) -> None:
        """Takes what the other process has published, and says that it has ended."""
        while not self.is_lost and self._take_some():
            pass
        if not self.is_lost:
            lost = self._lost
            self.close()
            lost()

    def _has_freed(self) -> None:
        """Has freed blocks told to their owner; called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._flush_freed)

    def _flush_freed(self) -> None:
        if not self._asked:
            self._asked = True
            self._flush()


def _ignore(*_: Any) -> None:
    """Takes the place of the owner's callbacks, once a link has ended."""
