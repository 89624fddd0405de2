"""A protocol of its own: CSV in, CSV out, errors as objects. All that a new protocol takes.

The rows of several answers follow one another in one response, as they come.
"""

import csv
import io
from functools import partial

import numpy as np
import orjson

from services.access.caller import Caller
from services.errors import InvalidRequestError, ServingError
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.edges.http_inference import HttpInference
from services.gateway.inference import Inference, InferencePath, WireProtocol
from services.gateway.request_accounting import RequestAccounting
from services.queueing.records import InferReply
from services.wire.body import Body
from services.wire.http1.exchange import Opener
from services.wire.http1.head import Head

FIELDS = b"content-type: text/csv\r\n"
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


class CsvExchange(HttpInference):
    """One inference."""

    __slots__ = ()
    closed_code = "gone"

    @property
    def authorization(self) -> None:
        """Nobody needs a credential."""

    def opened(self, received_at: float) -> Inference:
        return self._path.open(self, received_at, "", self.head.path.removeprefix("/csv/"))

    def decode(self, body: Body, caller: Caller | None) -> InferCall:
        assert self._inference is not None
        model, inputs = self._inference.model, [decode(body)]
        return InferCall(request_id="", model=model, version="", inputs=inputs)

    def part(self, reply: InferReply) -> None:
        if reply.is_last:
            self.end(reply)
            return
        assert reply.window is not None
        stream = self.stream or self.respond_in_parts(200, FIELDS)
        stream.write(encode(reply), reply.window.take)

    def end(self, reply: InferReply) -> None:
        assert self._inference is not None
        self._inference.answered(reply)
        if self.stream is not None:
            self.stream.end()
        else:
            self.respond(200, FIELDS, [encode(reply)] if reply.outputs else [])

    def fail(self, error: ServingError) -> None:
        if self.stream is not None:
            self.stream.break_off()
        else:
            self.respond_error(error)

    def error_content(self, error: ServingError) -> bytes:
        return orjson.dumps({"error": {"kind": type(error).__name__, "message": str(error)}})


def router(admission: Admission, accounting: RequestAccounting, head: Head) -> Opener:
    return partial(CsvExchange, InferencePath(CSV, admission, accounting))
