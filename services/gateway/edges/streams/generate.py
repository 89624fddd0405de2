"""REST's `generate` and `generate_stream`: one answer, or any number as server-sent events.

In: a head that names a model, and a JSON object (`generate_codec.py`). Out: a JSON object, or one
event for each answer, as it comes and as fast as the caller reads.

Source: Triton's generate extension, with normal errors: before the first answer an error has its
own status and `{"error": ...}`; behind it, it is one more event of a response with status 200.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from services.errors import InvalidRequestError, ServingError
from services.gateway.admission import InferCall
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.raw_parts import Part
from services.gateway.edges.rest_codec import RestBody
from services.gateway.edges.rest_infer import InferExchange, RestInferRoute
from services.gateway.edges.streams.generate_codec import encode_generated, read_generate
from services.gateway.edges.streams.sliced_replies import Encoded, SlicedReplies
from services.gateway.sliced_work import SlicedWork, Slices
from services.queueing.records import InferReply
from services.wire.body import Body
from services.wire.http1.exchange import ExchangeConnection, error_body
from services.wire.http1.head import Head
from services.wire.http1.response_stream import EVENT_STREAM, ResponseStream, event

if TYPE_CHECKING:
    from services.access.caller import Caller

LARGEST_BODY_BYTES = 512 * 1024
"""Largest body. Unlike the tensors of `infer`, its texts are parsed at once, 4 to 5 ms a MiB."""


class GenerateExchange(SlicedReplies, InferExchange):
    """One inference with exactly one answer."""

    __slots__ = ("_behind", "_reserved_bytes", "_said")

    def __init__(self, route: RestInferRoute, connection: ExchangeConnection, head: Head) -> None:
        InferExchange.__init__(self, route, connection, head)
        self._behind: deque[InferReply] | None = None
        self._reserved_bytes = 0
        self._said: Sequence[Part] | None = None

    def body_limit(self, max_bytes: int) -> int:
        """Returns the limit of such a body for callers that may infer."""
        return min(super().body_limit(max_bytes), LARGEST_BODY_BYTES)

    # Called by `Inference`, and by `SlicedReplies`.

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the object by the names of the model's inputs."""
        decoded = read_generate(body, self._route.signature())
        if isinstance(decoded, RestRequest):
            return self._call(decoded, caller)
        return self._call_in_slices(decoded, caller)

    @property
    def work(self) -> SlicedWork:
        """Runs the slices of large answers."""
        return self._route.path.admission.work

    def charge(self, size: int) -> None:
        """Reserves memory for an answer, or gives back some if negative."""
        self.reserve(size)

    def encode(self, reply: InferReply, reserve: Callable[[int], None]) -> Encoded:
        """Encodes an answer as an object."""
        assert self._request is not None
        return encode_generated(reply, self._request, reserve)

    def deliver(self, reply: InferReply, parts: Sequence[Part]) -> None:
        """Keeps the only answer until the end."""
        if self._said is not None:
            raise _not_one(reply)
        self._said = parts
        if reply.is_last:
            self.deliver_end(reply)
        else:
            assert reply.window is not None
            reply.window.take()

    def deliver_end(self, reply: InferReply) -> None:
        """Sends the only answer."""
        if self._said is None:
            raise _not_one(reply)
        self._send(reply, RestBody(list(self._said), None))


class GenerateStreamExchange(GenerateExchange):
    """One inference with any number of answers."""

    __slots__ = ()
    is_alone = True

    def deliver(self, reply: InferReply, parts: Sequence[Part]) -> None:
        """Sends an answer as an event."""
        data = event(b"".join(parts))
        if not reply.is_last:
            assert reply.window is not None
            self._begun().write(data, reply.window.take)
            return
        stream = self._begun()
        assert self._inference is not None
        self._inference.answered(reply)
        stream.end(data)

    def deliver_end(self, reply: InferReply) -> None:
        """Ends the events."""
        stream = self._begun()
        assert self._inference is not None
        self._inference.answered(reply)
        stream.end()

    def fail(self, error: ServingError) -> None:
        """Answers with an error, or ends the events with one."""
        if self.stream is None:
            super().fail(error)
        else:
            self.stream.end(event(error_body(error)))

    def _begun(self) -> ResponseStream:
        """Returns the response; it begins with the first answer."""
        if self.stream is not None:
            return self.stream
        assert self._inference is not None
        named = b"x-request-id: %b\r\n" % self._inference.request_id.encode()
        return self.respond_in_parts(200, EVENT_STREAM + named)


def _not_one(reply: InferReply) -> InvalidRequestError:
    return InvalidRequestError(
        f"model {reply.lane} answers this request in several parts or in none; generate takes "
        "exactly one answer, and generate_stream any number"
    )
