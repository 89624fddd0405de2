"""The queue between the processes of one server, beyond the contract of every queue."""

import asyncio
import gc
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import numpy as np
import pytest

from flambeau.protocol.tensors import Array, object_array
from services.errors import (
    BackendError,
    ModelNotReadyError,
    PayloadTooLargeError,
    QueueFullError,
    QueueUnavailableError,
    WorkerProcessDiedError,
)
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import InferReply, InferRequest, SequenceStep, ServedVersion
from tests.fixtures.part_reader import PartReader
from tests.fixtures.queue_ends import (
    LANE,
    Caller,
    SharedMemoryEnds,
    Shelf,
    reply,
    reply_of,
    request,
)
from tests.fixtures.redis_servers import until

MB = 2**18
"""Elements of a megabyte."""


class Server:
    """A model process with a shelf, and its edges."""

    def __init__(self) -> None:
        self.ends, self.shelf = SharedMemoryEnds(10_000), Shelf()
        self.ends.announce()
        self.ends.model.open(LANE, self.shelf)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    server.ends.model.end()


async def echoes(server: Server, queue: MemoryQueue, arrays: dict[str, Array]) -> InferReply:
    """Sends tensors to the model process, which answers with them."""
    sent = request()
    sent = InferRequest(request_id="r", lane=LANE, inputs=arrays, rows=1, deadline=sent.deadline)
    caller = Caller(queue, sent)
    await until(lambda: server.shelf.entries)
    entry = server.shelf.take()
    entry.finish(reply_of(dict(entry.request.inputs)))
    del entry
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply), outcome
    caller.heard.clear()
    return outcome


@pytest.mark.parametrize(
    "arrays",
    [
        {"scalar": np.array(7), "none": np.zeros((0, 3), np.float32)},
        {"small": np.arange(12, dtype=np.int8).reshape(3, 4), "flags": np.array([True, False])},
        {"large": np.arange(MB, dtype=np.float32).reshape(2, -1)},
        {"larger": np.arange(8 * MB, dtype=np.float32), "beside": np.ones(3, np.float16)},
        {"columns": np.arange(2 * MB, dtype=np.float32).reshape(-1, 2).T},
        {"texts": object_array([b"", "é".encode(), b"x" * 100_000]).reshape(3, 1)},
        {"many": object_array([b"%d" % n for n in range(10_000)])},
        {"long": object_array([b"y" * 3_000_000])},
    ],
    ids=lambda arrays: " ".join(arrays),
)
async def test_tensors_of_all_kinds_come_and_go(server: Server, arrays: dict[str, Array]) -> None:
    async with server.ends.edge(64 * 2**20) as queue:
        outcome = await echoes(server, queue, arrays)
        for name, array in arrays.items():
            assert outcome.outputs[name].dtype == array.dtype
            assert outcome.outputs[name].shape == array.shape
            assert np.array_equal(outcome.outputs[name], array)


async def test_large_tensors_are_views_whose_blocks_come_back(server: Server) -> None:
    """An arena of 8 MB carries far more than it holds, one after another."""
    async with server.ends.edge() as queue:
        array: Array = np.arange(MB, dtype=np.float32)
        for _ in range(40):
            outcome = await echoes(server, queue, {"x": array})
            assert not outcome.outputs["x"].flags.owndata
            del outcome
            gc.collect()


async def test_full_memory_refuses_at_once_and_has_room_again(server: Server) -> None:
    async with server.ends.edge() as queue:
        callers = [Caller(queue, request(n, elements=MB)) for n in range(12)]
        await until(lambda: len(server.shelf.entries) + sum(bool(c.heard) for c in callers) == 12)
        refused = [one.heard[0] for one in callers if one.heard]
        assert refused
        assert {type(error) for error in refused} == {QueueFullError}
        while server.shelf.entries:
            server.shelf.take().finish(reply())
        await until(lambda: all(one.heard for one in callers))
        gc.collect()
        assert await echoes(server, queue, {"x": np.zeros(MB, np.float32)})


async def test_tensor_that_never_fits_is_refused_by_name(server: Server) -> None:
    async with server.ends.edge(2**20) as queue:
        error = await Caller(queue, request(elements=2 * MB)).outcome()
        assert isinstance(error, PayloadTooLargeError)
        assert "max_buffered_bytes" in str(error)


async def test_answers_wait_for_room(server: Server) -> None:
    """More answers at once than the memory holds, each of which its caller drops."""
    values: list[float] = []

    def heard(outcome: object) -> None:
        assert isinstance(outcome, InferReply), outcome
        values.append(float(outcome.outputs["y"][0, 0]))

    async with server.ends.edge() as queue:
        for number in range(40):
            queue.submit(request(number), heard)
        for number, entry in enumerate(list(await server.shelf.holds(40))):
            entry.finish(reply(number, MB // 3))
        await until(lambda: len(values) == 40)
        assert sorted(values) == [*range(40)]


async def test_tensors_that_never_fit_together_are_refused_by_name(server: Server) -> None:
    """Each of them alone would fit, so that waiting for room looks as if it could help."""
    two = {name: np.zeros(3 * MB // 4, np.float32) for name in ("x", "y")}
    async with server.ends.edge(2**20) as queue:
        asked = msgspec.structs.replace(request(), inputs=two)
        error = await Caller(queue, asked).outcome()
        assert isinstance(error, PayloadTooLargeError)
        caller = Caller(queue, request())
        await server.shelf.holds(1)
        server.shelf.take().finish(reply_of(two))
        error = await caller.outcome()
        assert isinstance(error, BackendError)
        assert "max_buffered_bytes" in str(error)


async def test_answer_that_waits_for_a_cancelled_one_goes_when_that_is_dropped(
    server: Server,
) -> None:
    """The model process frees what it copied for the cancelled one; no message tells it so."""
    async with server.ends.edge() as queue:
        cancelled, waits = Caller(queue, request("cancelled")), Caller(queue, request("waits"))
        await server.shelf.holds(2)
        server.shelf.take().finish(reply(1, 8 * MB - 16))
        await until(lambda: server.ends.model.used_bytes)
        server.shelf.take().finish(reply(2, MB // 8))
        cancelled.entry.cancel()
        assert await waits.value() == 2


async def test_death_of_the_model_process_answers_what_it_held(server: Server) -> None:
    async with server.ends.edge() as queue:
        callers = [Caller(queue, request(n, elements=size)) for n, size in enumerate([1, 4 * MB])]
        await server.shelf.holds(2)
        server.ends.model.end()
        for caller in callers:
            error = await caller.outcome()
            assert isinstance(error, WorkerProcessDiedError)
            assert error.http_status == 503
        assert queue.unanswered == 0
        assert len(server.ends.losses) == 1
        refused = await Caller(queue, request()).outcome()
        assert isinstance(refused, QueueUnavailableError)


async def test_answers_that_were_published_before_the_death_arrive(server: Server) -> None:
    """More of them than one turn takes."""
    async with server.ends.edge() as queue:
        callers = [Caller(queue, request(n)) for n in range(200)]
        for number, entry in enumerate(list(await server.shelf.holds(200))):
            entry.finish(reply(number))
        await asyncio.sleep(0)  # the answers are written now; the edge has not read them
        server.ends.model.end()
        assert [await caller.value() for caller in callers] == [*range(200)]


async def test_small_parts_do_not_overtake_large_ones(server: Server) -> None:
    async with server.ends.edge() as queue:
        reader = PartReader(partial(queue.submit, request()))
        await server.shelf.holds(1)
        entry = server.shelf.take()
        for number, size in enumerate([4 * MB, 1, MB, 1]):
            part = reply(number, size)
            entry.part(msgspec.structs.replace(part, number=number, is_last=False))
        entry.finish(msgspec.structs.replace(reply(), outputs={}, number=4))
        await reader.wait()
        assert reader.numbers == [*range(5)]
        assert reader.values == [*range(4)]


async def test_error_does_not_overtake_a_large_part(server: Server) -> None:
    async with server.ends.edge() as queue:
        reader = PartReader(partial(queue.submit, request()))
        await server.shelf.holds(1)
        entry = server.shelf.take()
        entry.part(msgspec.structs.replace(reply(7, 4 * MB), is_last=False))
        entry.finish(BackendError("broken"))
        await reader.wait()
        assert reader.values == [7]
        assert isinstance(reader.heard[-1], BackendError)


async def test_request_for_an_unloaded_version_is_told_to_the_model_process() -> None:
    server = Server()
    async with server.ends.edge() as queue:
        unloaded = ServedVersion(lane=LANE, state="unloaded", reason="idle")
        server.ends.directory.announce(unloaded)
        edge = server.ends.directories[-1]
        await until(lambda: [found.state for found in edge.all_versions()] == ["unloaded"])
        assert queue.unanswered == 0
        assert not server.ends.directory.is_missed(LANE)
        with pytest.raises(ModelNotReadyError):
            edge.resolve(LANE.model)
        await until(lambda: server.ends.directory.is_missed(LANE))
    server.ends.model.end()


async def test_death_of_an_edge_cancels_its_requests_and_no_others(server: Server) -> None:
    async with server.ends.edge() as stays:
        async with server.ends.edge() as dies:
            for number in range(3):
                Caller(dies, request(number, elements=MB))
            await server.shelf.holds(3)
            kept = Caller(stays, request("kept"))
            await server.shelf.holds(4)
            running = server.shelf.take()
            inputs = running.request.inputs["x"]
        await server.shelf.holds(1)
        assert server.shelf.ids == ["kept"]
        assert running.dead
        assert inputs.sum() == 0, "a batch that runs still has its inputs"
        server.shelf.take().finish(reply(5))
        assert await kept.value() == 5


async def test_lane_closes_when_every_edge_has_seen_it_go(server: Server) -> None:
    """A request that was on its way when the version was withdrawn is run."""
    closed: list[bool] = []
    async with server.ends.edge() as one, server.ends.edge() as other:
        late = [Caller(queue, request()) for queue in (one, other)]
        server.ends.directory.withdraw(LANE)
        server.ends.model.close(LANE, lambda: closed.append(True))
        assert not closed
        await server.shelf.holds(2)
        await until(lambda: closed)
        for caller in late:
            server.shelf.take().finish(reply(1))
            assert await caller.value() == 1
        refused = await Caller(one, request()).outcome()
        assert isinstance(refused, ModelNotReadyError)


async def test_lane_that_opens_again_is_not_closed(server: Server) -> None:
    async with server.ends.edge() as queue:
        closed: list[bool] = []
        server.ends.model.close(LANE, lambda: closed.append(True))
        shelf = Shelf()
        server.ends.model.open(LANE, shelf)
        assert closed == [True]
        caller = Caller(queue, request())
        await shelf.holds(1)
        shelf.take().finish(reply(3))
        assert await caller.value() == 3


async def test_steps_of_a_sequence_from_two_edges_go_on_one_at_a_time(server: Server) -> None:
    def step(queue: MemoryQueue, *control: bool) -> Caller:
        sent = request()
        inputs, deadline = sent.inputs, sent.deadline
        return Caller(
            queue,
            InferRequest(
                request_id="s", lane=LANE, inputs=inputs, rows=1, deadline=deadline,
                sequence=SequenceStep("s", *control),
            ),
        )  # fmt: skip

    async with server.ends.edge() as one, server.ends.edge() as other:
        calls = [step(one, True), step(one), step(other)]
        for number in range(3):
            await server.shelf.holds(1)
            entry = server.shelf.take()
            assert entry.request.sequence is not None
            assert entry.request.sequence.is_start is (number == 0)
            entry.finish(reply(number))
        assert sorted([await call.value() for call in calls]) == [0, 1, 2]


async def test_burst_that_the_ring_does_not_hold_is_sent_as_it_has_room(server: Server) -> None:
    """Or the messages of one client would refuse those of another."""
    async with server.ends.edge() as queue:
        callers = [Caller(queue, request(n, elements=1500)) for n in range(1000)]
        await asyncio.sleep(0)  # the ring is full now
        callers.append(Caller(queue, request("another")))
        await server.shelf.holds(1001)
        assert server.shelf.ids == [*map(str, range(1000)), "another"]
        assert not any(caller.heard for caller in callers)


async def test_too_many_messages_for_the_ring_are_refused_at_once(server: Server) -> None:
    async with server.ends.edge() as queue:
        callers: list[Caller] = []
        while not (callers and callers[-1].heard):
            callers += [Caller(queue, request(elements=1500)) for _ in range(200)]
            await asyncio.sleep(0)
        assert isinstance(callers[-1].heard[0], QueueFullError)
        sent = [caller for caller in callers if not caller.heard]
        await server.shelf.holds(len(sent))
        for entry in server.shelf.entries:
            entry.finish(reply(1))
        for caller in sent:
            assert await caller.value() == 1
