"""One `:predict` of TensorFlow Serving's REST protocol, from request body to response.

In: a head that names a model and perhaps a version or a label, and its body. Out: `predictions` or
`outputs`, or `{"error": ...}`. Labels are aliases.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from services.errors import NotFoundError, UnsupportedError
from services.gateway.admission import InferCall
from services.gateway.edges import rest_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.predict import predict_codec
from services.gateway.edges.rest_infer import InferExchange, RestInferRoute
from services.gateway.inference import InferencePath, WireProtocol, only_one
from services.gateway.sliced_work import Slices
from services.queueing.records import InferReply
from services.wire.body import Body
from services.wire.http1.exchange import ExchangeConnection, Opener
from services.wire.http1.head import Head

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization
    from services.access.caller import Caller

V1 = WireProtocol("v1", "200", lambda error: str(error.http_status))

PREDICT = re.compile(
    r"/v1/models/([^/:]+)(?:/(versions|labels)/([^/:]+))?:(predict|classify|regress|explain)"
)
"""Model, kind of the version's name, that name, and verb."""
_PIECES_A_SLICE = 64


def predict_opener(
    path: InferencePath,
    head: Head,
    found: re.Match[str],
    authorization: "CachedAuthorization | None",
) -> Opener:
    """Returns the opener of the calls that a head describes, which `PREDICT` matches."""
    model, kind, version, verb = found[1], found[2], found[3] or "", found[4]
    route = RestInferRoute(path, head, model, version, authorization)
    if verb != "predict":
        route.fault = UnsupportedError(f"':{verb}' is not offered here; use ':predict'")
    elif kind == "labels" and version.isdecimal():
        route.fault = NotFoundError(
            f"model '{model[:128]}' has no label '{version[:128]}': a number names a version"
        )
    return partial(PredictExchange, route)


class PredictExchange(InferExchange):
    """One inference."""

    __slots__ = ("_is_row",)

    def __init__(self, route: RestInferRoute, connection: ExchangeConnection, head: Head) -> None:
        super().__init__(route, connection, head)
        self._is_row = False

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes either form of a body."""
        route = self._route
        signature = route.signature()
        predict_codec.check_size(body)
        text = bytes(body)
        if predict_codec.fits_at_once(text):
            inputs, self._is_row = predict_codec.decode(text, signature)
            return self._call(RestRequest(inputs=inputs), caller)
        text, self._is_row = predict_codec.as_inference(text, signature)
        check = partial(route.path.admission.check_inputs, route.model, route.version, caller)
        decoded = rest_codec.decode(text, None, None, check, self.reserve)
        if isinstance(decoded, RestRequest):
            return self._call(decoded, caller)
        return self._call_in_slices(decoded, caller)

    def part(self, reply: InferReply) -> None:
        """Sends the response, in the form of the request."""
        if not reply.is_last:
            only_one(reply)
        self._request = None
        predict_codec.check_form(reply)
        if predict_codec.is_large(reply):
            assert self._inference is not None
            self._inference.write(self._in_slices(reply), reply, partial(self._send, reply))
        else:
            text = b"".join(predict_codec.encode(reply, self._is_row))
            self._send(reply, rest_codec.RestBody([text], None))

    def _succeed(
        self, reply: InferReply, fields: bytes, parts: Sequence[bytes | memoryview]
    ) -> None:
        """Names the version that answered in a header: the protocol's body has no place for it."""
        fields = b"%bx-model-version: %d\r\n" % (fields, reply.lane.version)
        super()._succeed(reply, fields, parts)

    def _in_slices(self, reply: InferReply) -> Slices[rest_codec.RestBody]:
        parts: list[bytes | memoryview] = []
        for piece in predict_codec.encode(reply, self._is_row):
            self.reserve(len(piece))
            parts.append(piece)
            if len(piece) > 1024 or len(parts) % _PIECES_A_SLICE == 0:
                yield
        return rest_codec.RestBody([b"".join(parts)], None)
