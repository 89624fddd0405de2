"""Interface of a gRPC call's connection that calls and their edges use."""

from typing import Any, Protocol

from services.errors import ServingError
from services.wire.byte_budget import ByteBudget
from services.wire.compression import CompressionThread
from services.wire.http2.sending import Sender, Sending
from services.wire.loop_turns import LoopTurns


class CallPort(Protocol):
    """The interface of the port that calls use."""

    @property
    def budget(self) -> ByteBudget:
        """The bytes that the process holds."""

    @property
    def compression(self) -> CompressionThread:
        """Decompresses messages."""

    @property
    def now(self) -> float:
        """The event loop's time, a second old at most."""

    @property
    def turns(self) -> LoopTurns:
        """The turns of the event loop."""


class CallConnection(Protocol):
    """The interface of a connection that calls use.

    Attributes:
        moved_bytes: received since the connection began to wait for its peer.
        unfinished_bytes: of messages that are not whole.
    """

    moved_bytes: int
    unfinished_bytes: int

    @property
    def peer(self) -> str:
        """The address of the client."""

    @property
    def port(self) -> CallPort:
        """The port it belongs to."""

    @property
    def sending(self) -> Sending:
        """Output that the peer has not accepted yet."""

    @property
    def share_bytes(self) -> int:
        """Bytes of unread responses from which no further response is begun."""

    def answered(self, call: Sender) -> None:
        """Forgets a call that has its status."""

    def beginning(self, stream: int, block: bytes, flags: int = 0) -> bytes:
        """Encodes the headers of an answer."""

    def count_work(self, work_us: int) -> None:
        """Counts the time of moving bytes to new memory."""

    def refuse(self, call: Any, error: ServingError) -> None:
        """Refuses a call that a limit of the port does not admit."""

    def release(self, call: Any) -> None:
        """Releases the bytes charged to a call."""

    def settle_unsent(self) -> None:
        """Charges output that the peer has not accepted yet."""

    def unread(self) -> ServingError:
        """Returns the refusal of a further answer to a peer that does not read."""

    def write(self, data: bytes) -> None:
        """Writes frames."""

    def write_soon(self, data: bytes) -> None:
        """Writes all frames of a small message that is not the last of its call."""

    def write_whole(self, data: bytes) -> None:
        """Writes all frames of a small answer, perhaps with others of this turn."""
