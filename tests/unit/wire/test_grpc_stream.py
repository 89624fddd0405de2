"""Messages of one answer, sent as fast as the peer opens its window."""

from services.wire.http2.frames import (
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    Fault,
    frame,
    reset,
    settings,
    window_update,
)
from services.wire.http2.message_pieces import PREFIX_BYTES
from tests.unit.wire.http2_wire import EchoAll, Service, begin, message, wire


async def test_sender_learns_when_the_peer_has_window_for_its_messages() -> None:
    service = Service()
    w = wire(service, PREFACE + settings({INITIAL_WINDOW_SIZE: 2 * PREFIX_BYTES + 3}))
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, message(b"a")))
    (call,) = service.opened
    assert isinstance(call, EchoAll)
    assert call.taken == 1
    w.send(frame(DATA, 0, 1, message(b"bb") + message(b"ccc")))
    assert call.taken == 2
    w.send(window_update(1, 7))
    assert call.taken == 2, "a byte is missing"
    w.send(window_update(1, 1))
    assert call.taken == 3
    w.send(frame(DATA, END_STREAM, 1))
    answer = w.answers()[1]
    assert (answer.messages, answer.status) == ([b"a", b"bb", b"ccc"], 0)


async def test_sender_of_a_call_that_was_abandoned_learns_nothing() -> None:
    service = Service()
    w = wire(service, PREFACE + settings({INITIAL_WINDOW_SIZE: 0}))
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, message(b"a")))
    w.send(reset(1, Fault.CANCEL))
    (call,) = service.abandoned
    assert isinstance(call, EchoAll)
    assert call.taken == 0
    assert w.connection.sending.unsent_bytes == 0
