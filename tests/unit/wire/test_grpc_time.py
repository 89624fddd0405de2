"""Timeouts of connections and calls. The test moves the clock."""

import pytest

from services.wire.http2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    Fault,
    frame,
    settings,
    window_update,
)
from services.wire.http2.grpc_connection import PARTING_S
from services.wire.open_port import LINGER_S
from tests.unit.wire.http2_wire import (
    GREETING,
    Service,
    Wire,
    at,
    begin,
    call,
    message,
    wire,
)
from tests.unit.wire.http_wire import settle

DEADLINE_EXCEEDED = 4
NO_WINDOW = PREFACE + settings({INITIAL_WINDOW_SIZE: 0})


# Before the first call.


@pytest.mark.parametrize("sent", [b"", PREFACE[:5], PREFACE])
async def test_silent_connection(sent: bytes) -> None:
    w = wire(greeting=sent, receive_timeout_s=5)
    at(w, 4.9)
    assert not w.ended
    at(w, 5.1)
    assert w.ended


async def test_idle_connection_is_told_and_closed() -> None:
    w = wire(keep_alive_timeout_s=10, receive_timeout_s=5)
    at(w, 9.9)
    assert w.last_words() is None
    at(w, 10.1)
    assert w.last_words() == (Fault.NO_ERROR, "")
    assert w.ended
    assert not w.frames(PING)


async def test_time_without_calls_begins_with_the_last_answer() -> None:
    service = Service()
    w = wire(service, keep_alive_timeout_s=10)
    w.send(call(1, path="/t/Held"))
    at(w, 1000)
    assert w.last_words() is None
    service.held[0].release()
    at(w, 1009)
    assert not w.ended
    at(w, 1011)
    assert w.ended


# Messages that do not arrive.


@pytest.mark.parametrize(
    "sent", [b"", frame(DATA, 0, 1, b"\x00\x00"), frame(DATA, 0, 1, message(b"whole"))]
)
async def test_call_that_does_not_arrive(sent: bytes) -> None:
    service = Service()
    w = wire(service, receive_timeout_s=5)
    at(w, 1)
    w.send(begin(1) + sent)
    at(w, 5.9)
    assert not w.answers()
    at(w, 6.1)
    answer = w.answers()[1]
    assert answer.status == DEADLINE_EXCEEDED
    assert "within 5 s" in answer.words
    assert answer.reset is None
    assert (len(service.refused), service.abandoned) == (1, [])
    assert w.connection.unfinished_bytes == 0
    w.send(call(3))
    assert w.answers()[3].status == 0


async def test_drops_do_not_prolong_the_time() -> None:
    w = wire(receive_timeout_s=5)
    w.send(begin(1))
    for second in range(6):
        w.send(frame(DATA, 0, 1, b"\x00"[: second < 1]))
        at(w, second + 0.1)
    assert w.answers()[1].status == DEADLINE_EXCEEDED


async def test_each_message_of_a_stream_has_its_time() -> None:
    w = wire(receive_timeout_s=5)
    w.send(begin(1, "/t/All"))
    for second in (4, 8, 12):
        at(w, second)
        w.send(frame(DATA, 0, 1, message(b"a")))
    at(w, 16.9)
    assert w.answers()[1].status is None
    at(w, 17.1)
    at(w, 22.2)
    assert w.answers()[1].status == DEADLINE_EXCEEDED


async def test_each_message_of_a_stream_has_its_time_whatever_is_answered() -> None:
    service = Service()
    w = wire(service, NO_WINDOW, receive_timeout_s=5)
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, message(b"a")))
    at(w, 1)
    at(w, 5)
    w.send(frame(DATA, 0, 1, message(b"b")))
    at(w, 9)
    assert not service.opened[0].is_over
    at(w, 10.1)
    assert service.opened[0].is_over


async def test_work_may_take_longer_than_a_message() -> None:
    service = Service()
    w = wire(service, receive_timeout_s=5)
    w.send(call(1, path="/t/Held"))
    at(w, 1000)
    service.held[0].release()
    assert w.answers()[1].status == 0


# Peers who do not take what they asked for.


async def test_answer_that_is_not_taken_is_dropped() -> None:
    service = Service()
    w = wire(service, NO_WINDOW, receive_timeout_s=5)
    w.send(call(1, b"x" * 100))
    at(w, 1)
    at(w, 5.9)
    assert w.answers()[1].reset is None
    w.send(window_update(1, 1))
    at(w, 6)
    at(w, 10.9)
    assert (w.answers()[1].reset, len(w.answers()[1].data)) == (None, 1)
    at(w, 11.1)
    assert w.answers()[1].reset == Fault.CANCEL
    assert not w.connection.sending.waiting
    assert service.abandoned == [], "it was answered"
    w.send(window_update(1, 1000))
    assert len(w.answers()[1].data) == 1


async def test_answer_has_its_own_time_however_long_the_work_took() -> None:
    service = Service()
    w = wire(service, NO_WINDOW, receive_timeout_s=5)
    w.send(call(1, path="/t/Held"))
    at(w, 1000)
    service.held[0].release()
    at(w, 1000.1)
    at(w, 1004)
    w.send(window_update(1, 1000))
    assert w.answers()[1].status == 0
    assert w.answers()[1].messages == [b"hello"]


async def test_stream_whose_answers_are_not_taken_is_abandoned() -> None:
    service = Service()
    w = wire(service, NO_WINDOW, receive_timeout_s=5)
    w.send(begin(1, "/t/All") + frame(DATA, END_STREAM, 1, message(b"a")))
    w.send(begin(3, "/t/All") + frame(DATA, 0, 3, message(b"a")))
    at(w, 1)
    at(w, 7)
    at(w, 13)
    assert [w.answers()[stream].reset for stream in (1, 3)] == [Fault.CANCEL] * 2
    assert not w.connection.sending.waiting


@pytest.mark.parametrize("ending", [False, True])
async def test_peer_must_read_something_in_time(ending: bool) -> None:
    """Also the last answer of a connection that is to end."""
    w = wire(receive_timeout_s=5, keep_alive_timeout_s=1)
    w.send(call(1))
    w.unsent_bytes = 100_000
    w.connection.pause_writing()
    if ending:
        w.connection.close_if_idle()
    at(w, 4.9)
    w.unsent_bytes = 50_000
    at(w, 5.1)
    at(w, 10)
    assert not w.aborted
    at(w, 10.2)
    assert w.aborted


async def test_last_answer_on_a_slow_line_is_not_cut_off() -> None:
    w = wire(receive_timeout_s=5)
    w.send(call(1))
    w.unsent_bytes = 30_000
    w.connection.close_if_idle()
    for second in range(1, 30):
        w.unsent_bytes -= 1000
        at(w, second)
    assert not w.aborted
    w.unsent_bytes = 0
    at(w, 30)
    at(w, 30 + LINGER_S - 0.1)
    assert not w.aborted
    at(w, 30 + LINGER_S + 0.1)
    assert w.aborted


@pytest.mark.parametrize("sent", [frame(DATA, 0, 0), b"GET / HTTP/1.1\r\n\r\n"])
async def test_peer_that_does_not_hang_up(sent: bytes) -> None:
    w = wire(greeting=GREETING + sent if sent[:1] != b"G" else sent)
    assert w.ended
    at(w, LINGER_S - 0.1)
    assert not w.aborted
    at(w, LINGER_S + 0.1)
    assert w.aborted


async def test_peer_that_reads_nothing_while_its_connection_leaves() -> None:
    """Given up once: nothing is written behind that."""
    service = Service()
    w = wire(service, receive_timeout_s=5, grace_s=3)
    w.send(call(1, path="/t/Held"))
    w.connection.close_if_idle()
    w.unsent_bytes = 1
    w.connection.pause_writing()
    at(w, 0.1)
    before = w.output
    at(w, 5.2)
    at(w, 11)
    assert w.aborted
    assert w.output == before


# Age.


async def test_old_connection_is_left_by_its_calls_first() -> None:
    service = Service()
    w = wire(service, max_age_s=100, grace_s=20)
    w.send(call(1, path="/t/Held"))
    at(w, 89.9)
    assert w.last_words() is None
    at(w, 110.1)
    assert [one.kind for one in w.frames()[-2:]] == [GOAWAY, PING]
    w.send(call(3))
    await settle()
    assert w.answers()[3].status == 0, "it was on its way"
    service.held[0].release()
    assert w.answers()[1].status == 0
    assert w.ended


async def test_calls_of_an_old_connection_end_after_the_grace() -> None:
    service = Service()
    w = wire(service, max_age_s=100, grace_s=20)
    w.send(call(1, path="/t/Held"))
    at(w, 111)
    at(w, 130.9)
    assert service.abandoned == []
    at(w, 131.1)
    assert service.abandoned == service.held
    assert w.ended
    assert w.last_words() is not None


async def test_old_connection_without_calls() -> None:
    w = wire(max_age_s=10, grace_s=20)
    at(w, 11.1)
    assert w.last_words() == (Fault.NO_ERROR, "")
    assert w.ended


def age_s(w: Wire) -> float:
    """Returns the time at which a connection without calls leaves."""
    for tenths in range(2000):
        at(w, tenths / 10)
        if w.last_words() is not None:
            return tenths / 10
    raise AssertionError("it does not leave")


async def test_connections_do_not_all_age_at_once() -> None:
    wires = [wire(max_age_s=100, keep_alive_timeout_s=1000) for _ in range(20)]
    assert len(set(map(age_s, wires))) > 10
    w = wire(max_age_s=0)
    w.send(call(1, path="/t/Held"))
    at(w, 10**6)
    assert w.last_words() is None


async def test_call_that_times_out_as_the_last_of_a_leaving_connection() -> None:
    w = wire(receive_timeout_s=5)
    w.send(begin(1))
    w.connection.close_if_idle()
    at(w, PARTING_S + 0.1)
    at(w, 5.1)
    assert w.answers()[1].status == DEADLINE_EXCEEDED
    assert w.ended
