"""Bytes that the requests of pipelines hold between their steps: counted, limited, given back."""

import numpy as np
import pytest

from services.errors import BackendError, BufferFullError
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import InferReply
from tests.fixtures.pipeline_parts import ITEMS, PipelineParts
from tests.fixtures.queue_ends import LANE, Caller, reply_of, request
from tests.fixtures.redis_servers import until

FOUND = {"items": np.ones((1, 100, 1), np.float32), "found": np.ones((1, 100), np.bool_)}
"""400 + 100 bytes."""


def opened(held_bytes: int) -> tuple[PipelineParts, MemoryQueue]:
    parts, queue = PipelineParts(ITEMS, held_bytes=held_bytes), MemoryQueue(100)
    queue.open(LANE, parts.lane)
    return parts, queue


@pytest.mark.parametrize("end", ["answer", "error", "cancel", "deadline"])
async def test_bytes_are_given_back_whatever_ends_a_request(end: str) -> None:
    parts, queue = opened(1000)
    for _ in range(5):
        caller = Caller(queue, request())
        parts["finder"].take().finish(reply_of(FOUND))
        await parts["b"].holds(25)
        if end == "cancel":
            caller.entry.cancel()
            continue
        if end == "deadline":
            caller.entry.expire()
            continue
        while parts["b"].entries:
            entry = parts["b"].take()
            entry.finish(
                BackendError("no") if end == "error" else reply_of({"y": entry.request.inputs["x"]})
            )
        assert isinstance(await caller.outcome(), InferReply if end == "answer" else BackendError)


async def test_a_request_that_would_hold_too_much_is_refused_and_names_its_step() -> None:
    parts, queue = opened(900)
    first, second = Caller(queue, request()), Caller(queue, request())
    for _ in range(2):
        parts["finder"].take().finish(reply_of(FOUND))
    error = await second.outcome()
    assert isinstance(error, BufferFullError)
    assert "step 'find': requests of pipelines hold" in str(error)
    await until(lambda: bool(parts["b"].entries))
    assert not first.heard


async def test_the_copies_of_an_input_count() -> None:
    parts, queue = opened(700)
    caller = Caller(queue, request())
    found = FOUND["found"].copy()
    found[0, :30] = False  # so that the others are copied, 280 bytes
    parts["finder"].take().finish(reply_of(FOUND | {"found": found}))
    error = await caller.outcome()
    assert isinstance(error, BufferFullError)
    assert "step 'score': requests of pipelines hold 500 bytes" in str(error)
    assert "and 280 more would exceed the limit, 700" in str(error)
