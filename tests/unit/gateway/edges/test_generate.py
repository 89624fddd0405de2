"""`generate` and `generate_stream` on a wire: answers, ends, errors, slow readers, limits."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from services.errors import BackendError
from services.gateway.admission import Admission
from services.gateway.edges.rest_edge import RestEdge
from services.gateway.edges.streams.generate import LARGEST_BODY_BYTES
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.part_window import MAX_UNREAD, PartWindow
from services.queueing.records import ServedVersion
from services.readiness import Readiness
from services.telemetry.metrics import Metrics
from services.wire.http1.port import HttpPort
from tests.fixtures.signatures import one_to_one
from tests.unit.gateway.edges.stream_world import MANY, Intake, answer, end, part
from tests.unit.wire.http_wire import Answer, Wire, make_budget, make_limits, request


class Place:
    """A REST edge on a wire, before a decoupled model whose entries the test answers."""

    def __init__(self) -> None:
        directory, metrics = Directory(), Metrics("test")
        signature = one_to_one((), datatype="INT64", rows=8)
        directory.announce(
            ServedVersion(lane=MANY, state="ready", signature=signature, is_decoupled=True)
        )
        directory.make_live(MANY)
        queue, self.intake = MemoryQueue(8), Intake()
        queue.open(MANY, self.intake)
        admission = Admission(
            directory, queue, metrics, max_in_flight_requests=8, request_timeout_s=9
        )
        edge = RestEdge(
            admission,
            ServerFacts("test", directory, admission, Readiness()),
            RequestAccounting(metrics, directory, access_log=False),
        )
        limits = make_limits(max_request_bytes=4 * LARGEST_BODY_BYTES)
        port = HttpPort(edge.route, limits, metrics, make_budget())
        port.tick()
        self.wire = Wire(port)

    def ask(self, call: str, **document: Any) -> Entry:
        body = orjson.dumps({"x": 1, **document})
        self.wire.send(request(f"/v2/models/many/{call}", body))
        return self.intake.take()

    def one(self) -> Answer:
        (answer,) = self.wire.answers()
        return answer

    def events(self) -> list[Any]:
        """Returns the documents of the events of the only response, which has ended."""
        found = self.one()
        kind = "text/event-stream; charset=utf-8"
        assert (found.status, found.header("content-type")) == (200, kind)
        parts = found.body.split(b"\n\n")
        assert parts.pop() == b""
        return [orjson.loads(one.removeprefix(b"data: ")) for one in parts]


def _value(value: int, **more: Any) -> dict[str, Any]:
    return {"model_name": "many", "model_version": "1", **more, "y": value}


async def test_generate_gives_one_answer() -> None:
    for with_end in (False, True):
        place = Place()
        entry = place.ask("generate", id="mine")
        if with_end:
            part(entry, 7)
            assert not place.wire.output
            end(entry)
        else:
            answer(entry, 7)
        found = place.one()
        assert (found.status, orjson.loads(found.body)) == (200, _value(7, id="mine"))
        assert found.header("x-request-id") == "mine"


@pytest.mark.parametrize("parts", [0, 2])
async def test_generate_refuses_another_number_of_answers(parts: int) -> None:
    place = Place()
    entry = place.ask("generate")
    for value in range(parts):
        part(entry, value)
    if not parts:
        end(entry)
    found = place.one()
    assert (found.status, b"generate_stream any number" in found.body) == (400, True)


@pytest.mark.parametrize("finish", [end, lambda entry: answer(entry, 2)])
async def test_each_answer_is_an_event(finish: Callable[[Entry], None]) -> None:
    place = Place()
    entry = place.ask("generate_stream", id="mine")
    for value in range(2):
        part(entry, value)
    assert place.wire.output.count(b"data: ") == 2, "each is sent as it comes"
    finish(entry)
    found = place.events()
    assert found[:2] == [_value(value, id="mine") for value in range(2)]
    assert found[2:] == ([] if finish is end else [_value(2, id="mine")])
    assert place.one().header("x-request-id") == "mine"


async def test_no_answer_is_no_event() -> None:
    place = Place()
    end(place.ask("generate_stream"))
    assert place.events() == []


async def test_error_behind_an_answer_is_an_event_and_before_one_a_status() -> None:
    place = Place()
    entry = place.ask("generate_stream")
    part(entry, 1)
    entry.finish(BackendError("broken"))
    assert place.events() == [_value(1), {"error": "broken"}]
    place = Place()
    place.ask("generate_stream").finish(BackendError("broken"))
    found = place.one()
    assert (found.status, orjson.loads(found.body)) == (500, {"error": "broken"})


async def test_slow_reader_holds_up_its_own_model() -> None:
    place = Place()
    entry = place.ask("generate_stream")
    part(entry, 0)
    place.wire.connection.pause_writing()
    for value in range(1, MAX_UNREAD + 1):
        assert part(entry, value)
    window = entry.window
    assert isinstance(window, PartWindow)
    more = asyncio.create_task(asyncio.to_thread(window.give))
    done, _ = await asyncio.wait([more], timeout=0.1)
    assert not done
    place.wire.connection.resume_writing()
    assert await more


async def test_caller_who_disconnects_ends_the_request() -> None:
    place = Place()
    entry = place.ask("generate_stream")
    part(entry, 0)
    place.wire.connection.connection_lost(None)
    assert place.intake.discarded == ["cancelled"]
    assert not part(entry, 1)


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
async def test_body_has_a_limit_of_its_own(call: str) -> None:
    place = Place()
    body = b'{"x":1,"text":"%b"}' % (b"a" * LARGEST_BODY_BYTES)
    place.wire.send(request(f"/v2/models/many/{call}", body))
    assert place.wire.answers()[0].status == 413
