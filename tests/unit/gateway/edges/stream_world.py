"""A port that speaks ModelStreamInfer, before intakes whose entries the test answers."""

from functools import partial
from typing import Any

import numpy as np

from protos import open_inference_pb2 as pb
from services.gateway.admission import Admission
from services.gateway.edges.grpc_infer import GRPC, GrpcInferRoute
from services.gateway.edges.streams.grpc_stream import GrpcStreams
from services.gateway.inference import InferencePath
from services.gateway.request_accounting import RequestAccounting
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.part_window import PartWindow
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import Metrics
from services.wire.byte_budget import ByteBudget
from services.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.grpc_port import GrpcPort
from tests.fixtures.signatures import one_to_one
from tests.unit.wire.http2_wire import GREETING, Wire, block, fields, message
from tests.unit.wire.http_wire import make_budget, make_limits

ONE, MANY = Lane("one", 1), Lane("many", 1)
"""A model with one answer, and a decoupled one; both take `x` and give `y`, INT64 [-1]."""
PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


class Intake:
    """Holds the entries of both lanes until the test answers them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.discarded: list[str] = []

    @property
    def waiting(self) -> int:
        return 0

    def accept(self, entry: Entry) -> None:
        self.entries.append(entry)

    def discard(self, entry: Entry, reason: str) -> None:
        self.discarded.append(reason)

    def take(self) -> Entry:
        """Returns the oldest."""
        return self.entries.pop(0)


def part(entry: Entry, value: int, *, size: int = 1) -> bool:
    """Hands over an answer that is not the last. Returns False if it would wait for its reader."""
    window = entry.window
    if not isinstance(window, PartWindow):
        window = entry.window = PartWindow()
    if not window.give(0.01):
        return False
    entry.part(_reply(entry, {"y": np.full(size, value)}, is_last=False, window=window))
    return True


def answer(entry: Entry, value: int, *, size: int = 1) -> None:
    """Answers with the only answer."""
    entry.finish(_reply(entry, {"y": np.full(size, value)}))


def end(entry: Entry) -> None:
    """Ends the answers."""
    entry.finish(_reply(entry, {}))


def _reply(entry: Entry, outputs: dict[str, Any], **fields: Any) -> InferReply:
    return InferReply(
        lane=entry.request.lane, outputs=outputs, datatypes={"y": "INT64"}, batch_rows=1,
        queue_s=0.0, execution_s=0.0, **fields,
    )  # fmt: skip


class Gateway:
    """A port, and the queue behind it; `streams` opens its calls."""

    def __init__(
        self,
        budget: ByteBudget | None = None,
        greeting: bytes = GREETING,
        authorization: Any = None,
        **limits: Any,
    ) -> None:
        self.authorization = authorization
        self.metrics, directory = Metrics("test"), Directory()
        for lane in (ONE, MANY):
            signature = one_to_one((), datatype="INT64", rows=8)
            directory.announce(
                ServedVersion(
                    lane=lane, state="ready", signature=signature, is_decoupled=lane is MANY
                )
            )
            directory.make_live(lane)
        queue, self.intake = MemoryQueue(1024), Intake()
        for lane in (ONE, MANY):
            queue.open(lane, self.intake)
        self.queue = queue
        admission = Admission(
            directory, queue, self.metrics, max_in_flight_requests=1024, request_timeout_s=9
        )
        accounting = RequestAccounting(self.metrics, directory, access_log=False)
        self.path = InferencePath(GRPC, admission, accounting)
        self.streams = GrpcStreams()
        self.budget = budget or make_budget()
        self.port = GrpcPort(self._route, make_limits(**limits), self.metrics, self.budget)
        self.port.tick()
        self.greeting = greeting
        self._idle_bytes = 0
        self.wire = self.connect()

    def connect(self) -> Wire:
        """Opens one more connection."""
        wire = Wire(self.port)
        wire.send(self.greeting)
        return wire

    def _route(self, head: GrpcHead) -> None:
        route = GrpcInferRoute(self.path, head, self.authorization)
        head.open = partial(self.streams.open, route)

    def begin(self, stream: int = 1, *metadata: tuple[str, str]) -> None:
        """Opens a stream."""
        coded = block([*fields(PATH), *metadata])
        self.wire.send(frame(HEADERS, END_HEADERS, stream, coded))
        self._idle_bytes = self.budget.held_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that are charged beside the cached heads of calls."""
        return self.budget.held_bytes - self._idle_bytes

    def ask(self, *requests: pb.ModelInferRequest, stream: int = 1, ended: bool = False) -> None:
        """Sends requests, each in a frame of its own."""
        flags = [0] * (len(requests) - 1) + [END_STREAM * ended]
        for one, flag in zip(requests, flags, strict=True):
            self.wire.send(frame(DATA, flag, stream, message(one.SerializeToString())))

    def answers(self, stream: int = 1) -> list[pb.ModelStreamInferResponse]:
        """Returns what a stream was sent."""
        found = self.wire.answers().get(stream)
        if found is None:
            return []
        return [pb.ModelStreamInferResponse.FromString(one) for one in found.messages]

    def said(self, stream: int = 1) -> list[tuple[str, object]]:
        """Returns the id of each answer, and its value, its error, or `end`."""
        return [(one.infer_response.id, _value(one)) for one in self.answers(stream)]

    def status(self, stream: int = 1) -> int | None:
        """Returns the status of a stream; None while it is open."""
        found = self.wire.answers().get(stream)
        return found.status if found is not None else None

    def counted(self, code: str, model: str = "one") -> float:
        """Returns the requests that were counted under a code."""
        labels = {"model": model, "version": "1", "protocol": "grpc", "code": code}
        found = self.metrics.registry.get_sample_value("flambeau_requests_total", labels)
        return found or 0.0


def _value(one: pb.ModelStreamInferResponse) -> object:
    if one.error_message:
        return one.error_message
    raw = one.infer_response.raw_output_contents
    return int(np.frombuffer(raw[0], np.int64)[0]) if raw else "end"


def request(
    id: str, value: int = 0, model: str = "one", **parameters: bool
) -> pb.ModelInferRequest:
    """Returns a request message."""
    made = pb.ModelInferRequest(
        model_name=model,
        id=id,
        inputs=[pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[1])],
        raw_input_contents=[value.to_bytes(8, "little")],
    )
    for name, given in parameters.items():
        made.parameters[name].bool_param = given
    return made
