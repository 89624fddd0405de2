"""Large bodies on the REST edge: other requests are served between their slices."""

import asyncio
from collections.abc import Callable

import orjson
import pytest

from services.gateway import sliced_work
from services.gateway.admission import Admission
from services.gateway.edges.rest_edge import RestEdge
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.gateway.sliced_work import Slices
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane
from services.readiness import Readiness
from services.telemetry.metrics import Metrics
from services.wire.http1.port import HttpPort
from tests.fixtures.queue_ends import Shelf, reply_of
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one
from tests.unit.wire import http_wire
from tests.unit.wire.http_wire import Wire, on_loop, request, settle

LANE = Lane("m", 1)
INFER = "/v2/models/m/infer"
SMALL = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP64","data":[1]}]}'
ROWS = 60_000


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_work, "TURN_S", 0.0)


def large(rows: int = ROWS, data: str = "1") -> bytes:
    text = ",".join([data] * ROWS)
    head = f'"name":"x","shape":[{rows}],"datatype":"FP64"'
    return f'{{"inputs":[{{{head},"data":[{text}]}}]}}'.encode()


class Server:
    """A REST edge over the real admission, and the worker of its model."""

    def __init__(self) -> None:
        directory = serving(one_to_one((), datatype="FP64", rows=ROWS), LANE)
        metrics = Metrics("test")
        queue, self.shelf = MemoryQueue(9), Shelf()
        queue.open(LANE, self.shelf)
        self.admission = Admission(
            directory, queue, metrics, max_in_flight_requests=9, request_timeout_s=9
        )
        facts = ServerFacts("test", directory, self.admission, Readiness())
        edge = RestEdge(
            self.admission, facts, RequestAccounting(metrics, directory, access_log=False)
        )
        self.budget = http_wire.make_budget()
        limits = http_wire.make_limits(max_request_bytes=4 * len(large()))
        self.port = HttpPort(edge.route, limits, metrics, self.budget)
        self.port.tick()

    def ask(self, body: bytes) -> Wire:
        """Sends an inference on a new connection."""
        wire = Wire(self.port)
        wire.send(request(INFER, body))
        return wire

    def answer(self) -> None:
        """Answers the oldest admitted request with twice its input."""
        entry = self.shelf.take()
        entry.finish(reply_of({"y": entry.request.inputs["x"] * 2}))


async def until(happened: Callable[[], object]) -> None:
    """Runs the event loop until a condition holds."""
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110 - a turn of the loop is what is awaited
            await asyncio.sleep(0)


def test_small_request_is_served_while_a_large_one_is_read_and_answered() -> None:
    async def test() -> None:
        server = Server()
        slow = server.ask(large())
        assert server.shelf.entries == []
        quick = server.ask(SMALL)
        server.answer()
        assert orjson.loads(quick.answers()[0].body)["outputs"][0]["data"] == [2]
        await until(lambda: server.shelf.entries)
        server.answer()
        assert slow.output == b""
        await until(lambda: slow.output)
        assert orjson.loads(slow.answers()[0].body)["outputs"][0]["data"] == [2] * ROWS

    on_loop(test)


def test_memory_beyond_the_body_is_charged_until_the_answer() -> None:
    async def test() -> None:
        server = Server()
        before = server.budget.held_bytes
        body = large()
        wire = server.ask(body)
        await until(lambda: server.shelf.entries)
        assert server.budget.held_bytes - before >= 8 * ROWS - len(body)
        server.answer()
        await until(lambda: wire.output)
        assert server.budget.held_bytes == before
        gone = server.ask(body)
        gone.connection.connection_lost(None)
        await settle()
        assert server.budget.held_bytes == before

    on_loop(test)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (large(ROWS - 1), "holds 60000 elements; shape [59999] takes 59999"),
        (large(ROWS + 1), "the batch has 60001 rows; at most 60000 fit"),
        (large(data="true"), "it holds a boolean"),
        (large().replace(b'"x"', b'"z"'), "unknown input 'z'"),
    ],
)
def test_large_request_is_refused_in_words(body: bytes, words: str) -> None:
    async def test() -> None:
        server = Server()
        before = server.budget.held_bytes
        wire = server.ask(body)
        await until(lambda: wire.output)
        (answer,) = wire.answers()
        assert answer.status == 400
        assert words in orjson.loads(answer.body)["error"]
        assert server.budget.held_bytes == before

    on_loop(test)


def test_memory_that_is_not_there_is_refused() -> None:
    async def test() -> None:
        server = Server()
        body = large()
        server.budget.held_bytes += server.budget.limit_bytes - len(body)
        wire = server.ask(body)
        await until(lambda: wire.output)
        (answer,) = wire.answers()
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert b"max_buffered_bytes" in answer.body

    on_loop(test)


def test_answer_that_there_is_no_memory_for_is_refused() -> None:
    async def test() -> None:
        server = Server()
        wire = server.ask(large())
        await until(lambda: server.shelf.entries)
        server.budget.held_bytes += server.budget.limit_bytes - server.budget.held_bytes
        server.answer()
        await until(lambda: wire.output)
        (answer,) = wire.answers()
        assert answer.status == 503
        assert b"max_buffered_bytes" in answer.body

    on_loop(test)


def test_reading_ends_when_the_caller_has_gone() -> None:
    async def test() -> None:
        server = Server()
        wire = server.ask(large())
        wire.connection.connection_lost(None)
        await server.admission.work.run(_many_turns())
        assert server.shelf.entries == []

    on_loop(test)


def _many_turns() -> Slices[None]:
    for _ in range(1000):
        yield
