"""A protocol added in less than 100 lines supports the whole life cycle of an inference."""

from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pytest

from model_store.signature import Signature, TensorSpec
from services.errors import BackendError
from services.gateway.admission import Admission
from services.gateway.request_accounting import RequestAccounting
from services.gateway.wire.http1.port import HttpPort
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import Metrics
from tests.unit.gateway import csv_protocol
from tests.unit.gateway.wire.http_wire import Answer, Wire, make_budget, make_limits, request

LANE = Lane("m", 1)
SPEC = TensorSpec(name="x", datatype="FP32", shape=(-1, 2))


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
        outputs = {"y": 2 * entry.request.inputs["x"]}
        entry.finish(
            InferReply(
                lane=LANE, outputs=outputs, datatypes={"y": "FP32"}, batch_rows=1, queue_s=0.0,
                execution_s=0.0,
            )
        )  # fmt: skip


class Place:
    """A port that speaks CSV, and the queue behind it."""

    def __init__(self) -> None:
        directory, self.metrics = Directory(), Metrics("test")
        signature = Signature(inputs=(SPEC,), outputs=(SPEC,), max_batch_size=4)
        directory.announce(ServedVersion(lane=LANE, state="ready", signature=signature))
        directory.make_live(LANE)
        queue, self.intake = MemoryQueue(1), Doubling()
        queue.open(LANE, self.intake)
        admission = Admission(
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


async def test_caller_who_disconnects() -> None:
    place = Place()
    place.ask(b"1,2\n")
    place.wire.connection.connection_lost(None)
    assert place.intake.discarded == ["cancelled"]
    assert place.counted("gone") == 1
