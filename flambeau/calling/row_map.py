"""Sends many rows through a model in batches, and yields the outputs of each row in order.

Rules:
- at most `in_flight` batches are sent and not yet yielded, so that an endless iterable is read only
  that far ahead;
- outputs of the rows before one that fails are yielded first, then its error is raised;
- a batch that the server refuses or fails on is sent again row by row, which finds the row.
"""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sized,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from flambeau.calling.progress_bar import progress_bar
from flambeau.calling.row_batches import Arrays, RowBatch, RowBatcher
from flambeau.errors import ClientError
from flambeau.wire import single_or_all

Rows = Iterable[Any] | AsyncIterable[Any]


@dataclass(frozen=True, slots=True)
class _Answered:
    """Outputs of the rows of a batch, up to the first that failed."""

    rows: list[Arrays]
    failure: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMap:
    """The settings of one `map`."""

    title: str
    arrays_of: Callable[[Any], Arrays]
    """Converts a row to arrays with the batch axis."""
    batch_size: int
    in_flight: int
    progress: bool | None

    def run(self, rows: Iterable[Any], infer: Callable[[Arrays], Arrays]) -> Iterator[Any]:
        """Yields the only output of each row, or a dict of its outputs.

        Args:
            rows: rows, as `arrays_of` takes them.
            infer: runs the model on a batch; is called in threads.

        Raises:
            ClientError: a row or a batch failed.
        """
        threads = ThreadPoolExecutor(self.in_flight, "flambeau-map")
        try:
            with progress_bar(self.title, _length(rows), self.progress) as advance:
                for answered in self._in_order(self._batches(rows), threads, infer):
                    for outputs in answered.rows:
                        advance()
                        yield single_or_all(outputs)
                    if answered.failure is not None:
                        raise answered.failure
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def run_async(
        self, rows: Rows, infer: Callable[[Arrays], Awaitable[Arrays]]
    ) -> AsyncGenerator[Any, None]:
        """Same as `run` in an event loop; closing it cancels the calls in flight."""
        with progress_bar(self.title, _length(rows), self.progress) as advance:
            async with aclosing(self._in_order_async(rows, infer)) as answers:
                async for answered in answers:
                    for outputs in answered.rows:
                        advance()
                        yield single_or_all(outputs)
                    if answered.failure is not None:
                        raise answered.failure

    def _in_order(
        self,
        batches: Iterator[RowBatch | Exception],
        threads: ThreadPoolExecutor,
        infer: Callable[[Arrays], Arrays],
    ) -> Iterator[_Answered]:
        pending: deque[Future[_Answered]] = deque()
        for batch in batches:
            pending.append(threads.submit(_answer, batch, infer))
            while pending and (len(pending) == self.in_flight or pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    async def _in_order_async(
        self, rows: Rows, infer: Callable[[Arrays], Awaitable[Arrays]]
    ) -> AsyncGenerator[_Answered, None]:
        pending: deque[asyncio.Task[_Answered]] = deque()
        try:
            async with aclosing(self._batches_async(rows)) as batches:
                async for batch in batches:
                    pending.append(asyncio.create_task(_answer_async(batch, infer)))
                    while pending and (len(pending) == self.in_flight or pending[0].done()):
                        yield await pending[0]
                        pending.popleft()
            while pending:
                yield await pending[0]
                pending.popleft()
        finally:
            for task in pending:
                task.cancel()

    def _batches(self, rows: Iterable[Any]) -> Iterator[RowBatch | Exception]:
        """Yields the batches, and at the end the error that ended the rows, if any."""
        batcher = RowBatcher(self.arrays_of, self.batch_size)
        failure: Exception | None = None
        try:
            for row in rows:
                yield from batcher.add(row)
        except Exception as error:
            failure = error
        yield from batcher.rest()
        if failure is not None:
            yield failure

    async def _batches_async(self, rows: Rows) -> AsyncGenerator[RowBatch | Exception, None]:
        if not isinstance(rows, AsyncIterable):
            for batch in self._batches(rows):
                yield batch
            return
        batcher = RowBatcher(self.arrays_of, self.batch_size)
        failure: Exception | None = None
        try:
            async for row in rows:
                for complete in batcher.add(row):
                    yield complete
        except Exception as error:
            failure = error
        for last in batcher.rest():
            yield last
        if failure is not None:
            yield failure


def _answer(batch: RowBatch | Exception, infer: Callable[[Arrays], Arrays]) -> _Answered:
    """Runs a batch, and row by row if it fails because of one of them."""
    if isinstance(batch, Exception):
        return _Answered([], batch)
    try:
        outputs = infer(batch.inputs())
    except ClientError as failure:
        if not batch.may_hold_the_cause(failure):
            return _Answered([], batch.naming(failure))
    else:
        return _split(batch, outputs)
    done: list[Arrays] = []
    for single in batch.singles():
        answered = _answer(single, infer)
        done += answered.rows
        if answered.failure is not None:
            return _Answered(done, answered.failure)
    return _Answered(done)


async def _answer_async(
    batch: RowBatch | Exception, infer: Callable[[Arrays], Awaitable[Arrays]]
) -> _Answered:
    """Same as `_answer`."""
    if isinstance(batch, Exception):
        return _Answered([], batch)
    try:
        outputs = await infer(batch.inputs())
    except ClientError as failure:
        if not batch.may_hold_the_cause(failure):
            return _Answered([], batch.naming(failure))
    else:
        return _split(batch, outputs)
    done: list[Arrays] = []
    for single in batch.singles():
        answered = await _answer_async(single, infer)
        done += answered.rows
        if answered.failure is not None:
            return _Answered(done, answered.failure)
    return _Answered(done)


def _split(batch: RowBatch, outputs: Arrays) -> _Answered:
    try:
        return _Answered(batch.split(outputs))
    except ClientError as failure:
        return _Answered([], batch.naming(failure))


def _length(rows: object) -> int | None:
    return len(rows) if isinstance(rows, Sized) else None
