"""Intermediate answers: what `send_intermediate_predict_response` sends, as answers of the batch.

TorchServe's function writes a message to the socket `context.cl_socket`. Here that is an object
that reads the message and waits until the server has taken its answers, so that a slow caller
slows the handler, and one that left ends its work.
Source: the messages of TorchServe 0.12: integers of 4 bytes, big-endian; a code and its words; then
for each request its id, content type, status, phrase, headers and body; -1 at the end.
"""

import queue
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from flambeau.torchserve.batch_answers import checked_headers
from model_store.archives.handler_calls import HandlerAnswer

_INTEGER = struct.Struct("!i")


class CallersLeftError(ConnectionError):
    """Nobody reads the answers of the batch any more."""


class IntermediateAnswers:
    """The socket of one handler, whose calls run in the thread of an executor."""

    def __init__(self) -> None:
        self._batch: _Batch | None = None

    def sendall(self, message: bytes | bytearray) -> None:
        """Hands over the answers in a message, and waits until they are taken.

        Raises:
            CallersLeftError: nobody reads them: no batch runs, or they are of an earlier one.
            ValueError: it is no message of TorchServe's.
        """
        batch, parts = self._batch, parsed_message(message)
        if batch is None:
            raise CallersLeftError("no batch runs; answer before the handler returns")
        if parts and batch.ids.isdisjoint(parts):
            raise CallersLeftError("these answers are of an earlier batch, whose handler returned")
        batch.parts.put(parts)
        if not batch.goes_on.get():
            raise CallersLeftError("the callers of this batch have left; its answers are not read")

    def during(
        self, call: Callable[[], Sequence[HandlerAnswer]], ids: Sequence[str], executor: Executor
    ) -> Iterator[list[HandlerAnswer]]:
        """Yields the answers that a call sends, and then those that it returns.

        Args:
            call: answers the batch; runs in the executor.
            ids: ids of the requests of the batch, in order; no two batches share one.
            executor: has one thread.
        """
        batch = self._batch = _Batch(ids)
        running = executor.submit(call)
        running.add_done_callback(lambda _: batch.parts.put(None))
        part: dict[str, HandlerAnswer] | None = {}
        try:
            while (part := batch.parts.get()) is not None:
                yield [part.get(one, HandlerAnswer(is_intermediate=True)) for one in ids]
                batch.goes_on.put(True)
            yield list(running.result())
        finally:
            if part is not None:  # the generator was closed: the call must end before the next
                batch.goes_on.put(False)
                while batch.parts.get() is not None:
                    batch.goes_on.put(False)
            self._batch = None
            batch.goes_on.put(False)  # to a thread of the handler's that came too late


class _Batch:
    """The answers of one batch on their way: what comes behind it is not the next one's."""

    __slots__ = ("goes_on", "ids", "parts")

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = frozenset(ids)
        self.parts: queue.SimpleQueue[dict[str, HandlerAnswer] | None] = queue.SimpleQueue()
        self.goes_on: queue.SimpleQueue[bool] = queue.SimpleQueue()


def parsed_message(message: bytes | bytearray) -> dict[str, HandlerAnswer]:
    """Returns the answers in a message, by the ids of their requests.

    Raises:
        ValueError: it is cut off, or text in it is no UTF-8.
    """
    data, at = memoryview(message), 0

    def integer() -> int:
        nonlocal at
        if at + _INTEGER.size > len(data):
            raise ValueError(f"a message of {len(data):,} bytes is cut off at {at:,}")
        at += _INTEGER.size
        found: int = _INTEGER.unpack_from(data, at - _INTEGER.size)[0]
        return found

    def piece(size: int) -> bytes:
        nonlocal at
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a message of {len(data):,} bytes has a piece of {size:,} at {at:,}")
        at += size
        return bytes(data[at - size : at])

    integer()
    piece(integer())
    found: dict[str, HandlerAnswer] = {}
    while (size := integer()) >= 0:
        identity = piece(size).decode()
        content_type = piece(integer()).decode()
        status, phrase = integer(), piece(integer()).decode()
        headers = [(piece(integer()).decode(), piece(integer()).decode()) for _ in range(integer())]
        named = dict(headers) | ({"content-type": content_type} if content_type else {})
        found[identity] = HandlerAnswer(
            body=piece(integer()),
            status=status,
            phrase=phrase,
            headers=checked_headers(named),
            is_intermediate=True,
        )
    return found
