"""A protocol added in less than 100 lines supports the whole life cycle of an inference."""

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import orjson
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from services.errors import BackendError
from services.gateway.admission import Admission
from services.gateway.request_accounting import RequestAccounting
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.part_window import MAX_UNREAD, PartWindow
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import Metrics
from services.wire.http1.port import HttpPort
from tests.unit.gateway import csv_protocol
from tests.unit.wire.http_wire import (
    Answer,
    Wire,
    make_budget,
    make_limits,
    request,
    settle,
)

LANE = Lane("m", 1)
SPEC = TensorSpec(name="x", datatype="FP32", shape=(-1, 2))


def reply(outputs: dict[str, Array]) -> InferReply:
    """Returns the only reply of a request."""
    return InferReply(
        lane=LANE, outputs=outputs, datatypes={"y": "FP32"}, batch_rows=1, queue_s=0.0,
        execution_s=0.0,
    )  # fmt: skip


class Doubling:
    """An intake that answers when the test says so."""

    def __init__(self) -> None:
        self.held: list[Entry] = []
        self.discarded: list[str] = []

    @property
    def waiting(self) -> int:
        return len(self.held)

    def accept(self, entry: Entry) -> None:
        self.held.append(entry)

    def discard(self, entry: Entry, reason: str) -> None:
        self.held.remove(entry)
        self.discarded.append(reason)

    def answer(self) -> None:
        entry = self.held.pop()
        entry.finish(reply({"y": 2 * entry.request.inputs["x"]}))


class Place:
    """A port that speaks CSV, and the queue behind it."""

    def __init__(self) -> None:
        directory, self.metrics = Directory(), Metrics("test")
        signature = Signature(inputs=(SPEC,), outputs=(SPEC,), max_batch_size=4)
        directory.announce(ServedVersion(lane=LANE, state="ready", signature=signature))
        directory.make_live(LANE)
        queue, self.intake = MemoryQueue(1), Doubling()
        queue.open(LANE, self.intake)
        self.admission = admission = Admission(
            directory, queue, self.metrics, max_in_flight_requests=8, request_timeout_s=9
        )
        accounting = RequestAccounting(self.metrics, directory, access_log=False)
        route = partial(csv_protocol.router, admission, accounting)
        port = HttpPort(route, make_limits(), self.metrics, make_budget())
        port.tick()
        self.wire = Wire(port)

    def ask(self, body: bytes, model: str = "m") -> None:
        self.wire.send(request(f"/csv/{model}", body))

    def one(self) -> Answer:
        (answer,) = self.wire.answers()
        return answer

    def counted(self, code: str) -> float | None:
        labels = {"model": "m", "version": "1", "protocol": "csv", "code": code}
        return self.metrics.registry.get_sample_value("flambeau_requests_total", labels)


def test_a_protocol_takes_less_than_100_lines() -> None:
    assert len(Path(csv_protocol.__file__).read_text().splitlines()) < 100


async def test_answer() -> None:
    place = Place()
    place.ask(b"1,2\n3,4\n")
    place.intake.answer()
    assert np.loadtxt(place.one().body.decode().splitlines(), delimiter=",").tolist() == [
        [2, 4], [6, 8],
    ]  # fmt: skip
    assert place.counted("ok") == 1


@pytest.mark.parametrize(
    ("body", "model", "kind"),
    [
        (b"1,x\n", "m", "InvalidRequestError"),
        (b"1,2,3\n", "m", "InvalidRequestError"),
        (b"1,x\n", "other", "UnknownModelError"),
    ],
)
async def test_error_in_its_own_form(body: bytes, model: str, kind: str) -> None:
    place = Place()
    place.ask(body, model)
    assert orjson.loads(place.one().body)["error"]["kind"] == kind


async def test_full_queue_and_failed_backend() -> None:
    place = Place()
    place.ask(b"1,2\n")
    place.ask(b"1,2\n")
    place.intake.held.pop().finish(BackendError("broken"))
    kinds = [orjson.loads(answer.body)["error"]["kind"] for answer in place.wire.answers()]
    assert kinds == ["BackendError", "QueueFullError"]
    assert (place.counted("BackendError"), place.counted("QueueFullError")) == (1, 1)


async def test_errors_may_have_other_words() -> None:
    place = Place()
    place.admission.error_words = lambda error, model, protocol: BackendError(
        f"{protocol} {model}: {error}"
    )
    place.ask(b"1,2\n")
    place.intake.held.pop().finish(BackendError("broken"))
    assert orjson.loads(place.one().body)["error"]["message"] == "csv m: broken"


async def test_caller_who_disconnects() -> None:
    place = Place()
    place.ask(b"1,2\n")
    place.wire.connection.connection_lost(None)
    assert place.intake.discarded == ["cancelled"]
    assert place.counted("gone") == 1


class Streaming:
    """A request whose rows come one by one."""

    def __init__(self, place: Place) -> None:
        place.ask(b"1,2\n")
        self.entry = place.intake.held[0]
        self.window = self.entry.window = PartWindow()

    def give(self, value: float) -> None:
        """Gives one part, which its window must have room for."""
        number = self.window.given
        assert self.window.give()
        part = reply({"y": np.array([[value]], np.float32)})
        self.entry.part(
            msgspec.structs.replace(part, number=number, is_last=False, window=self.window)
        )

    def end(self) -> None:
        self.entry.finish(msgspec.structs.replace(reply({}), number=self.window.given))


async def test_many_answers_are_written_as_they_come() -> None:
    place = Place()
    streaming = Streaming(place)
    for number in range(3 * MAX_UNREAD):
        streaming.give(number)
    assert place.counted("ok") is None
    streaming.end()
    values = [float(line) for line in place.one().body.split()]
    assert values == [*range(3 * MAX_UNREAD)]
    assert place.counted("ok") == 1


async def test_no_answer_is_an_empty_response() -> None:
    place = Place()
    Streaming(place).end()
    assert (place.one().status, place.one().body) == (200, b"")
    assert place.counted("ok") == 1


async def test_slow_reader_leaves_no_room_for_more_parts() -> None:
    place = Place()
    streaming = Streaming(place)
    streaming.give(0)
    place.wire.connection.pause_writing()
    for number in range(1, MAX_UNREAD + 1):
        streaming.give(number)
    more = asyncio.create_task(asyncio.to_thread(streaming.window.give))
    done, _ = await asyncio.wait([more], timeout=0.1)
    assert not done
    place.wire.connection.resume_writing()
    assert await more


async def test_caller_who_disconnects_between_two_parts() -> None:
    place = Place()
    streaming = Streaming(place)
    streaming.give(0)
    place.wire.connection.connection_lost(None)
    assert not streaming.window.give()
    assert place.intake.discarded == ["cancelled"]
    assert place.counted("gone") == 1


async def test_error_between_two_parts_breaks_the_response_off() -> None:
    place = Place()
    streaming = Streaming(place)
    streaming.give(0)
    streaming.entry.finish(BackendError("broken"))
    await settle()
    assert place.wire.closed
    assert not place.wire.output.endswith(b"\r\n0\r\n\r\n")
    assert place.counted("BackendError") == 1
