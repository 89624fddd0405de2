"""The messages between an edge and the model process, as MessagePack.

In: requests, replies and errors; small news about them and about the shared memory. Out: messages
again. Tensors come inside, or as blocks of an arena (`tensor_blocks.py`).
"""

from collections.abc import Mapping

import msgspec

from services.queueing.fleet import Announcement
from services.queueing.records import Lane, SequenceStep
from services.readiness import Look
from services.tracing.context import TraceContext


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message; the tag of its class comes first."""


class TensorMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A tensor: its bytes as `encode_raw` gives them, or where they lie."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes = b""
    block: int = -1
    """Offset in the sender's arena; negative if the bytes are here."""
    size: int = 0
    """Bytes in the arena."""


class RequestMessage(Message, tag=0, frozen=True):
    """All of a request."""

    number: int
    """No other request of this link has it."""
    lane: int
    """Number of the lane, as a `LaneMessage` before gave it."""
    request_id: str
    inputs: tuple[TensorMessage, ...]
    rows: int
    deadline: float
    """`time.monotonic()` second, which is the same in all processes of a machine."""
    priority: int
    length: int | None
    outputs: tuple[str, ...]
    trace: TraceContext | None = None
    sequence: SequenceStep | None = None
    accuracy: str = ""
    merged: int = 1


class CancelMessage(Message, tag=1, frozen=True):
    """The caller of a request has gone, or its edge has given it up."""

    number: int


class ReadMessage(Message, tag=2, frozen=True):
    """Parts of an answer that the caller has read so far."""

    number: int
    count: int


class FreedMessage(Message, tag=3, frozen=True):
    """Blocks of the receiver's arena that the sender no longer views."""

    blocks: list[int]


class LaneMessage(Message, tag=4, frozen=True):
    """Gives a lane its number on this link."""

    number: int
    lane: Lane


class SeenMessage(Message, tag=5, frozen=True):
    """The edge has applied a view, and sends no more to lanes that it does not have."""

    number: int


class MissedMessage(Message, tag=6, frozen=True):
    """A request needs a version that was unloaded."""

    lane: Lane


class SpentMessage(Message, tag=7, frozen=True):
    """Tokens of shared rates that the edge has spent: name, tokens a second, and tokens."""

    spent: list[tuple[str, float, float]]


class ActMessage(Message, tag=8, frozen=True):
    """A caller loads or unloads a model."""

    number: int
    act: str
    model: str
    dependents: bool


class ReplyMessage(Message, tag=0, frozen=True):
    """A reply, without its lane: it is that of the request."""

    number: int
    outputs: tuple[TensorMessage, ...]
    datatypes: Mapping[str, str]
    batch_rows: int
    queue_s: float
    execution_s: float
    part: int = 0
    is_last: bool = True


class FailureMessage(Message, tag=1, frozen=True):
    """The error of a request."""

    number: int
    kind: str
    text: str


class ReleasedMessage(Message, tag=3, frozen=True):
    """As `FreedMessage`, from the model process."""

    blocks: list[int]


class ViewMessage(Message, tag=4, frozen=True):
    """The `View` of the versions that the model process serves, as a tensor of bytes."""

    view: TensorMessage


class LeftMessage(Message, tag=5, frozen=True):
    """Tokens of shared rates that are left for all edges: name, tokens a second, and tokens."""

    left: list[tuple[str, float, float]]


class ActedMessage(Message, tag=6, frozen=True):
    """The outcome of an act: the error, or no kind if it was done."""

    number: int
    kind: str = ""
    text: str = ""


class View(msgspec.Struct, array_like=True, frozen=True):
    """Versions that are served, and what is missing."""

    number: int
    announcement: Announcement
    look: Look


ToModel = (
    RequestMessage
    | CancelMessage
    | ReadMessage
    | FreedMessage
    | LaneMessage
    | SeenMessage
    | MissedMessage
    | SpentMessage
    | ActMessage
)
ToEdge = ReplyMessage | FailureMessage | ReleasedMessage | ViewMessage | LeftMessage | ActedMessage

FRAME_MESSAGES = 32
"""Requests of one frame, and answers, until it ends: so many take some 0.5 ms."""
FRAME_BYTES = 128 * 1024
"""Bytes at which a frame ends; with its last message it stays below a quarter of a ring."""

encode = msgspec.msgpack.Encoder().encode
decode_to_model = msgspec.msgpack.Decoder(list[ToModel]).decode
decode_to_edge = msgspec.msgpack.Decoder(list[ToEdge]).decode
decode_view = msgspec.msgpack.Decoder(View).decode


def framed(messages: list[bytes]) -> bytes:
    """Returns one frame of encoded messages: the head of a MessagePack array, and its elements."""
    return b"".join((b"\xdc", len(messages).to_bytes(2, "big"), *messages))
