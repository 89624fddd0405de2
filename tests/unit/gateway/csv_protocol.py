"""A protocol of its own: CSV in, CSV out, errors as objects. All that a new protocol takes."""

import csv
import io
import time
from functools import partial

import numpy as np
import orjson

from services.access.caller import Caller
from services.errors import InvalidRequestError, ServingError
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.inference import Inference, InferencePath, WireProtocol, only_one
from services.gateway.request_accounting import RequestAccounting
from services.gateway.wire.body import Body
from services.gateway.wire.http1.exchange import Exchange, ExchangeConnection, Opener
from services.gateway.wire.http1.head import Head
from services.queueing.records import InferReply

CSV = WireProtocol("csv", "ok", lambda error: type(error).__name__)


def decode(body: Body) -> InputTensor:
    """Reads rows of numbers; raises InvalidRequestError for anything else."""
    try:
        rows = [list(map(float, row)) for row in csv.reader(io.StringIO(bytes(body).decode()))]
        return InputTensor(name="x", datatype="FP32", array=np.array(rows, np.float32))
    except ValueError as error:
        raise InvalidRequestError(f"the body is no CSV of numbers: {error}") from error


def encode(reply: InferReply) -> bytes:
    """Writes the rows of the first output."""
    text = io.StringIO()
    csv.writer(text).writerows(next(iter(reply.outputs.values())).tolist())
    return text.getvalue().encode()


class CsvExchange(Exchange):
    """One inference."""

    __slots__ = ("_inference", "_path")
    is_paced = True

    def __init__(self, path: InferencePath, connection: ExchangeConnection, head: Head) -> None:
        super().__init__(connection, head)
        self._path = path
        self._inference: Inference | None = None

    @property
    def is_over(self) -> bool:
        return self.response is not None

    def begin(self, body: Body) -> None:
        self._path.admission.turns.begin(self, body, self._connection)

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        self._open(received_at).begin(body, None)

    def refuse(self, error: ServingError) -> None:
        self._open(time.monotonic()).fail(error)

    def abandon(self) -> None:
        super().abandon()
        gone = ServingError("the caller has disconnected")
        (self._inference or self._open(time.monotonic())).cancel("gone", gone)

    def _open(self, received_at: float) -> Inference:
        model = self.head.path.removeprefix("/csv/")
        self._inference = self._path.open(self, received_at, "", model)
        return self._inference

    def decode(self, body: Body, caller: Caller | None) -> InferCall:
        assert self._inference is not None
        model, inputs = self._inference.model, [decode(body)]
        return InferCall(request_id="", model=model, version="", inputs=inputs)

    def part(self, reply: InferReply) -> None:
        assert self._inference is not None
        only_one(reply)
        text = encode(reply)
        self._inference.answered(reply)
        self.respond(200, b"content-type: text/csv\r\n", [text])

    end = staticmethod(only_one)

    def fail(self, error: ServingError) -> None:
        self.respond_error(error)

    def error_content(self, error: ServingError) -> bytes:
        return orjson.dumps({"error": {"kind": type(error).__name__, "message": str(error)}})


def router(admission: Admission, accounting: RequestAccounting, head: Head) -> Opener:
    return partial(CsvExchange, InferencePath(CSV, admission, accounting))
