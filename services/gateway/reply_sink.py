"""An edge's end of an inference: decodes its request, encodes its replies and writes them."""

from typing import TYPE_CHECKING, Protocol

from services.errors import ServingError
from services.gateway.admission import InferCall
from services.gateway.sliced_work import Slices
from services.queueing.records import InferReply
from services.wire.body import Body

if TYPE_CHECKING:
    from services.access.caller import Caller


class ReplySink(Protocol):
    """The edge's end of one inference: decodes the request, encodes replies and writes them.

    The inference calls `decode` once; then `part` for each reply until one `is_last`, or `end` in
    place of a last one without outputs; or `fail`. It calls nothing after the last reply or an
    error, nor once the caller has disconnected.
    """

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Decodes the request, or says how to in slices.

        Raises:
            ServingError: it is not one of this protocol, or asks for what is not supported.
        """

    def part(self, reply: InferReply) -> None:
        """Writes a reply; calls `Inference.answered` before it writes the last.

        Once one that is not the last is written, `reply.window.take` lets the backend go on.

        Raises:
            ServingError: it cannot be written in the form asked for.
        """

    def end(self, reply: InferReply) -> None:
        """Writes the end behind the replies before; calls `Inference.answered` first.

        Raises:
            ServingError: this protocol has no answer without outputs.
        """

    def fail(self, error: ServingError) -> None:
        """Writes an error in the form of its protocol. It raises nothing: no other outcome follows.

        So it reserves no memory. Behind parts of a stream it uses `ResponseStream.end(last)` for an
        error in the form of the protocol, or `break_off`.
        """

    def release(self) -> None:
        """Gives back the bytes that were charged for the request: its answer is charged instead."""

    def key(self, source: str, name: str) -> str:
        """Returns a value of the request that its version may be drawn by; empty for none.

        Args:
            source: `header`, or `parameter`; a protocol may have no parameters.
            name: of that; a header's in lower case.
        """
