"""A gRPC port without a network: pieces of bytes in, frames out, all on one event loop.

`Client` speaks by the state machine of the library h2, which holds the server to the rules; where
a test breaks the rules itself, it writes frames by hand (`frame`, `block`, `begin`).
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import Settings
from hpack import Decoder, Encoder

from services.errors import ServingError
from services.telemetry.metrics import Metrics
from services.wire.body import Body
from services.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Fault,
    frame,
)
from services.wire.http2.grpc_call import Call, UnaryCall
from services.wire.http2.grpc_connection import GrpcConnection
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.grpc_port import GrpcPort
from tests.unit.wire.http_wire import FakeTransport, make_budget, make_limits

GREETING = PREFACE + frame(SETTINGS, 0, 0)


# Who answers.


@dataclass
class Service:
    """Records of the calls."""

    heads: list[GrpcHead] = field(default_factory=list)
    opened: "list[Echo | EchoAll]" = field(default_factory=list)
    held: "list[Echo]" = field(default_factory=list)
    abandoned: "list[Echo | EchoAll]" = field(default_factory=list)
    refused: list[ServingError] = field(default_factory=list)

    def route(self, head: GrpcHead) -> None:
        """Routes by path, as the edge does."""
        self.heads.append(head)
        head.open = partial(EchoAll if head.path == "/t/All" else Echo, self)

    @property
    def open_calls(self) -> int:
        """Returns the number of calls that wait for their end."""
        return sum(not call.is_over for call in self.opened)


class Echo(UnaryCall):
    """Answers with the message it got: at once, or for `/t/Held` when the test says so."""

    __slots__ = ("got", "message", "service")

    def __init__(self, service: Service, *args: Any) -> None:
        super().__init__(*args)
        self.service = service
        self.message = b""
        self.got: list[bytes] = []
        service.opened.append(self)

    def take(self, message: Body) -> None:
        """Remembers."""
        super().take(message)
        self.got.append(bytes(message))

    def begin(self, message: Body) -> None:
        """Answers now, or on `release`."""
        self.message = bytes(message)
        if self.head.path == "/t/Held":
            self.service.held.append(self)
        else:
            self.release()

    def release(self) -> None:
        """Answers."""
        self.reply(self.message)

    def refuse(self, error: ServingError) -> None:
        """Keeps the error beside answering with it."""
        self.service.refused.append(error)
        super().refuse(error)

    def abandon(self) -> None:
        """Remembers."""
        self.service.abandoned.append(self)


class EchoAll(Call):
    """Answers each message with itself."""

    __slots__ = ("got", "service", "taken")

    def __init__(self, service: Service, *args: Any) -> None:
        super().__init__(*args)
        self.service = service
        self.got: list[bytes] = []
        self.taken = 0
        service.opened.append(self)

    def take(self, message: Body) -> None:
        """Answers."""
        self.got.append(bytes(message))
        self.send(bytes(message), self._was_taken)

    def _was_taken(self) -> None:
        self.taken += 1

    def end_input(self) -> None:
        """Ends, too."""
        self.finish()

    def abandon(self) -> None:
        """Remembers."""
        self.service.abandoned.append(self)


def make_port(service: Service | None = None, **limits: Any) -> GrpcPort:
    """Creates a port with limits that no test reaches, except those given."""
    route = (service or Service()).route
    port = GrpcPort(route, make_limits(**limits), Metrics("test"), make_budget())
    port.tick()
    return port


# The transport.


class Wire(FakeTransport):
    """A transport that speaks gRPC."""

    def __init__(self, port: GrpcPort) -> None:
        self.connection = GrpcConnection(port)
        self.opened_at = port.now
        super().__init__(self.connection)

    def frames(self, *kinds: int) -> "list[Frame]":
        """Returns the written frames, of these kinds or of all."""
        return [one for one in read_frames(self.output) if not kinds or one.kind in kinds]

    def answers(self) -> "dict[int, Answer]":
        """Returns the response of each stream."""
        found: dict[int, Answer] = {}
        decoder = Decoder()
        for one in self.frames(HEADERS, DATA, RST_STREAM):
            answer = found.setdefault(one.stream, Answer())
            if one.kind == HEADERS:
                answer.fields.update(read_block(decoder, one.payload))
            elif one.kind == DATA:
                answer.data += one.payload
            else:
                answer.reset = Fault(int.from_bytes(one.payload, "big"))
            answer.ended |= one.kind in (HEADERS, DATA) and bool(one.flags & END_STREAM)
        return found

    def last_words(self) -> "tuple[Fault, str] | None":
        """Returns the error and the message of the last GOAWAY."""
        found = self.frames(GOAWAY)
        if not found:
            return None
        payload = found[-1].payload
        return Fault(int.from_bytes(payload[4:8], "big")), payload[8:].decode()


@dataclass(frozen=True)
class Frame:
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes


@dataclass
class Answer:
    """The response of one stream so far."""

    fields: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: Fault | None = None

    @property
    def status(self) -> int | None:
        """gRPC's; None if there is none yet."""
        return int(self.fields["grpc-status"]) if "grpc-status" in self.fields else None

    @property
    def words(self) -> str:
        """Message of an error."""
        return self.fields.get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        """Returns all messages; no bytes may be left over."""
        return list(_messages(self.data))


def read_frames(data: bytes) -> Iterator[Frame]:
    """Frames, of which the last one is whole."""
    position = 0
    while position < len(data):
        high, low, kind, flags, stream = struct.unpack_from(">HBBBI", data, position)
        end = position + 9 + (high << 8 | low)
        assert end <= len(data), "half a frame was written"
        yield Frame(kind, flags, stream, data[position + 9 : end])
        position = end


def _messages(data: bytes) -> Iterator[bytes]:
    while data:
        assert data[0] == 0
        size = int.from_bytes(data[1:5], "big")
        assert len(data) >= 5 + size, "half a message"
        yield data[5 : 5 + size]
        data = data[5 + size :]


# What callers send.


def message(content: bytes, flag: int = 0) -> bytes:
    """Encodes a message as in DATA."""
    return bytes((flag,)) + len(content).to_bytes(4, "big") + content


def fields(path: str = "/t/Echo", **metadata: Any) -> list[tuple[str, str]]:
    """The head of a call."""
    first = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
    usual = {"te": "trailers", "content-type": "application/grpc"}
    more = {name.replace("_", "-"): value for name, value in metadata.items()}
    return first + list((usual | more).items())


def block(found: Iterable[tuple[str, str]]) -> bytes:
    """Encodes a header block without entries for the dynamic table."""
    coded: bytes = Encoder().encode([(name, value, True) for name, value in found], huffman=False)
    return coded


def begin(stream: int, path: str = "/t/Echo", flags: int = 0, **metadata: Any) -> bytes:
    """The HEADERS of a call."""
    return frame(HEADERS, END_HEADERS | flags, stream, block(fields(path, **metadata)))


def call(stream: int, content: bytes = b"hello", path: str = "/t/Echo", **metadata: Any) -> bytes:
    """Encodes a whole call with one message that fits a frame."""
    return begin(stream, path, **metadata) + frame(DATA, END_STREAM, stream, message(content))


def wire(service: Service | None = None, greeting: bytes = GREETING, **limits: Any) -> Wire:
    """Opens a connection to a port of its own, with the settings of both sides exchanged."""
    w = Wire(make_port(service, **limits))
    w.send(greeting)
    return w


def at(w: Wire, seconds: float) -> None:
    """The port's timer, so much after the connection was made."""
    w.connection.port.now = w.opened_at + seconds
    w.connection.sweep()


class Client:
    """A caller that keeps to the rules, and sees to it that the server does.

    Attributes:
        h2: its side of the connection.
        answers: by stream.
        goaways: faults and words.
    """

    def __init__(self, w: Wire, settings: dict[int, int] | None = None) -> None:
        self.wire = w
        config = H2Configuration(client_side=True, header_encoding=None)
        self.h2 = H2Connection(config)
        first: dict[Any, int] = dict(self.h2.local_settings) | (settings or {})
        self.h2.local_settings = Settings(client=True, initial_values=first)
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.goaways: list[int] = []
        self._read = 0
        self.pump()

    def pump(self) -> None:
        """Sends what there is to send, and reads what came."""
        while True:
            self.wire.send(self.h2.data_to_send())
            data = self.wire.output[self._read :]
            self._read += len(data)
            if not data:
                return
            # One at a time: h2 would take the largest size of frames from before the first.
            for one in read_frames(data):
                whole = frame(one.kind, one.flags, one.stream, one.payload)
                for event in self.h2.receive_data(whole):
                    self._take(event)

    def begin(self, path: str = "/t/Echo", *, ended: bool = False, **metadata: Any) -> int:
        """Begins a call; returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, fields(path, **metadata), end_stream=ended)
        self.answers[stream] = Answer()
        return stream

    def call(self, content: bytes = b"hello", path: str = "/t/Echo", **metadata: Any) -> int:
        """Sends a call of one message; returns its stream."""
        stream = self.begin(path, **metadata)
        self.data(stream, message(content), ended=True)
        self.pump()
        return stream

    def data(self, stream: int, data: bytes, *, ended: bool = False) -> None:
        """Sends DATA of a call, in as many frames as it takes."""
        size = self.h2.max_outbound_frame_size
        while len(data) > size:
            self.h2.send_data(stream, data[:size])
            data = data[size:]
        self.h2.send_data(stream, data, end_stream=ended)

    def widen(self, increment: int, stream: int = 0) -> None:
        """Takes more, on the connection or of a call, unless that has ended."""
        if not stream:
            self.h2.increment_flow_control_window(increment)
        elif not self.answers[stream].ended:
            self.h2.increment_flow_control_window(increment, stream)
        self.pump()

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                answer = self.answers[event.stream_id or 0]
                answer.fields.update(_texts(event.headers or []))
            case DataReceived():
                self.answers[event.stream_id or 0].data += event.data or b""
            case StreamEnded():
                self.answers[event.stream_id or 0].ended = True
            case StreamReset():
                self.answers[event.stream_id or 0].reset = Fault(event.error_code or 0)
            case ConnectionTerminated():
                self.goaways.append(int(event.error_code or 0))


def read_block(decoder: Decoder, coded: bytes) -> list[tuple[str, str]]:
    """The fields of a block."""
    return _texts(decoder.decode(coded, raw=True))


def _texts(found: Iterable[Any]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in found]
