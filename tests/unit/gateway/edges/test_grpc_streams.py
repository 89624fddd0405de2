"""ModelStreamInfer: order, errors in band, many answers, ends, limits, and slow readers."""

import pytest

from services.errors import BackendError, ForbiddenError, UnauthenticatedError
from services.gateway.edges.streams import grpc_stream
from services.gateway.edges.streams.grpc_stream import MAX_IN_FLIGHT
from services.gateway.edges.streams.streamed_inference import FINAL
from services.queueing.part_window import MAX_UNREAD
from services.wire.byte_budget import ByteBudget
from services.wire.http2.frames import (
    CALL_WINDOW,
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    WINDOW_UPDATE,
    Fault,
    frame,
    reset,
    settings,
    window_update,
)
from tests.unit.gateway.edges.stream_world import Gateway, answer, end, part, request
from tests.unit.wire.http2_wire import at, message
from tests.unit.wire.http_wire import settle

WIDE = PREFACE + settings({INITIAL_WINDOW_SIZE: 2**30}) + window_update(0, 2**30)
NO_WINDOW = PREFACE + settings({INITIAL_WINDOW_SIZE: 0})


async def test_answers_keep_the_order_of_their_requests() -> None:
    g = Gateway()
    g.begin()
    g.ask(request("a"), request("b"), request("c"))
    a, b, c = g.intake.entries
    held = g.held_bytes
    answer(c, 3)
    answer(b, 2, size=1000)
    assert g.said() == [], "the first is not there"
    assert g.held_bytes > held + 8000, "answers that wait are charged"
    answer(a, 1)
    await settle()
    assert g.held_bytes == 0
    assert g.said() == [("a", 1), ("b", 2), ("c", 3)]
    g.ask(request("d"), ended=True)
    assert g.status() is None
    answer(g.intake.entries[-1], 4)
    await settle()
    assert (g.said()[-1], g.status()) == (("d", 4), 0)
    assert g.held_bytes == 0
    assert g.counted("OK") == 4


async def test_answers_of_decoupled_models_wait_for_nobody() -> None:
    g = Gateway()
    g.begin()
    g.ask(request("a"), request("m", model="many"), request("n", model="many"), request("b"))
    a, m, n, b = g.intake.entries
    part(n, 1)
    part(m, 2)
    part(n, 3)
    answer(b, 9)
    end(n)
    await settle()
    assert g.said() == [("n", 1), ("m", 2), ("n", 3)]
    end(m)
    answer(a, 8)
    await settle()
    assert g.said()[3:] == [("a", 8), ("b", 9)]
    finals = [one.infer_response.parameters["triton_final_response"] for one in g.answers()]
    assert [final.bool_param for final in finals] == [False] * 3 + [True] * 2
    assert g.counted("OK", "many") == 2


async def test_end_is_sent_to_those_that_ask_for_it() -> None:
    g = Gateway()
    g.begin()
    wanted = {"triton_enable_empty_final_response": True}
    g.ask(request("none", model="many"), request("some", model="many", **wanted))
    none, some = g.intake.entries
    part(some, 5)
    end(some)
    end(none)
    await settle()
    assert g.said() == [("some", 5), ("some", "end")]
    last = g.answers()[-1].infer_response
    assert (last.model_name, last.model_version) == ("many", "1")
    assert last.parameters["triton_final_response"].bool_param


async def test_errors_come_in_their_turn_and_the_stream_goes_on() -> None:
    g = Gateway()
    g.begin()
    g.ask(request("a"), request("b", model="other"), request("c"), request("d"))
    a, c, d = g.intake.entries
    c.finish(BackendError("broken"))
    answer(a, 1)
    answer(d, 2)
    await settle()
    assert g.said() == [
        ("a", 1), ("b", "model 'other' is not served (known: many, one)"), ("c", "broken"),
        ("d", 2),
    ]  # fmt: skip
    codes = [one.infer_response.parameters["grpc_status"].string_param for one in g.answers()]
    assert codes == ["", "NOT_FOUND", "INTERNAL", ""]
    g.wire.send(frame(DATA, 0, 1, message(b"\xff")))
    await settle()
    assert "not a valid message" in str(g.said()[-1])
    assert g.status() is None


async def test_error_behind_parts_ends_its_request() -> None:
    g = Gateway()
    g.begin()
    g.ask(request("m", model="many"), ended=True)
    m = g.intake.take()
    part(m, 1)
    m.finish(BackendError("broken"))
    await settle()
    assert (g.said(), g.status()) == ([("m", 1), ("m", "broken")], 0)
    ends = [one.infer_response.parameters[FINAL].bool_param for one in g.answers()]
    assert ends == [False, True]


async def test_first_error_is_the_status_of_a_strict_stream() -> None:
    g = Gateway()
    g.begin(1, (grpc_stream.STRICT, "true"))
    g.ask(request("a"), request("b"), request("c"))
    a, b, c = g.intake.entries
    answer(a, 1)
    b.finish(BackendError("broken"))
    await settle()
    assert (g.said(), g.status()) == ([("a", 1)], 13)
    assert c.dead
    assert g.intake.discarded == ["cancelled"]
    assert g.held_bytes == 0


async def test_message_that_comes_in_pieces() -> None:
    g = Gateway()
    g.begin()
    data = message(request("a").SerializeToString()) + message(request("b").SerializeToString())
    for position in range(len(data)):
        g.wire.send(frame(DATA, 0, 1, data[position : position + 1]))
    a, b = g.intake.entries
    answer(a, 1)
    answer(b, 2)
    g.wire.send(frame(DATA, END_STREAM, 1, b""))
    await settle()
    assert (g.said(), g.status()) == ([("a", 1), ("b", 2)], 0)


async def test_end_within_a_message_is_refused() -> None:
    g = Gateway()
    g.begin()
    g.ask(request("a"))
    g.wire.send(frame(DATA, END_STREAM, 1, b"\x00\x00"))
    await settle()
    assert g.status() == 3
    assert g.intake.discarded == ["cancelled"]


async def test_stream_without_requests_ends_at_once() -> None:
    g = Gateway()
    g.begin()
    g.wire.send(frame(DATA, END_STREAM, 1, b""))
    await settle()
    assert g.status() == 0


async def test_caller_who_cancels() -> None:
    g = Gateway()
    g.begin()
    count = 2 * grpc_stream.DROPPED_A_TURN
    g.ask(*[request(str(number)) for number in range(count)])
    await settle()
    assert len(g.intake.entries) == count
    g.wire.send(reset(1, Fault.CANCEL))
    assert len(g.intake.discarded) == grpc_stream.DROPPED_A_TURN, "the rest in later turns"
    await settle()
    assert len(g.intake.discarded) == count
    assert g.counted("CANCELLED") == count
    assert g.held_bytes == 0
    answer(g.intake.take(), 1)
    assert g.said() == []


async def test_requests_in_flight_are_limited_and_the_rest_wait() -> None:
    g = Gateway()
    g.begin()
    count = MAX_IN_FLIGHT + 10
    g.ask(*[request(str(number), number) for number in range(count)], ended=True)
    await settle()
    assert len(g.intake.entries) == MAX_IN_FLIGHT
    assert g.wire.connection.unfinished_bytes, "the rest is held as it came"
    for _ in range(count):
        answer(g.intake.take(), 0)
        await settle()
    assert [id for id, _ in g.said()] == [str(number) for number in range(count)]
    assert g.status() == 0
    assert g.wire.connection.unfinished_bytes == 0


async def test_caller_of_a_full_stream_has_no_window() -> None:
    g = Gateway(greeting=WIDE, max_request_bytes=2**26)
    g.begin()
    g.ask(*[request("", number) for number in range(MAX_IN_FLIGHT)])
    await settle()
    one = message(request("", 1).SerializeToString())
    before = len(g.wire.frames(WINDOW_UPDATE))
    block = one * (10_000 // len(one))
    for _ in range(CALL_WINDOW * 3 // 4 // len(block)):
        g.wire.send(frame(DATA, 0, 1, block))
        await settle()
    assert len(g.wire.frames(WINDOW_UPDATE)) == before
    waiting = g.wire.connection.unfinished_bytes
    while g.intake.entries:
        answer(g.intake.take(), 1)
        await settle()
    assert waiting > CALL_WINDOW // 2
    assert g.wire.connection.unfinished_bytes == 0
    given = [int.from_bytes(f.payload, "big") for f in g.wire.frames(WINDOW_UPDATE)[before:]]
    assert sum(given) >= CALL_WINDOW // 2


async def test_data_beyond_the_window_ends_the_connection() -> None:
    g = Gateway(max_request_bytes=2**26)
    g.begin()
    g.ask(*[request("", number) for number in range(MAX_IN_FLIGHT)])
    await settle()
    some = message(bytes(10_000))
    for _ in range(CALL_WINDOW // len(some)):
        g.wire.send(frame(DATA, 0, 1, some))
        await settle()
    assert g.wire.last_words() is None
    g.wire.send(frame(DATA, 0, 1, some))
    last = g.wire.last_words()
    assert last is not None
    assert last[0] is Fault.FLOW_CONTROL_ERROR


async def test_reader_that_stops_holds_up_its_own_model() -> None:
    g = Gateway(greeting=NO_WINDOW)
    g.begin()
    g.ask(request("m", model="many"))
    m = g.intake.take()
    assert all(part(m, number) for number in range(MAX_UNREAD))
    assert not part(m, 99)
    await settle()
    assert g.said() == []
    g.wire.send(settings({INITIAL_WINDOW_SIZE: 10**6}))
    await settle()
    assert [value for _, value in g.said()] == list(range(MAX_UNREAD))


async def test_unread_answers_count_as_in_flight() -> None:
    g = Gateway(greeting=NO_WINDOW)
    g.begin()
    g.ask(*[request(str(number)) for number in range(MAX_IN_FLIGHT + 1)])
    await settle()
    for _ in range(MAX_IN_FLIGHT):
        answer(g.intake.take(), 1)
    await settle()
    assert g.intake.entries == [], "nothing was read"
    g.wire.send(settings({INITIAL_WINDOW_SIZE: 10**6}))
    await settle()
    assert len(g.intake.entries) == 1


async def test_bytes_in_flight_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [request(str(number)) for number in range(4)]
    monkeypatch.setattr(grpc_stream, "IN_FLIGHT_BYTES", 2 * len(sent[0].SerializeToString()))
    g = Gateway()
    g.begin()
    g.ask(*sent)
    await settle()
    assert len(g.intake.entries) == 2
    answer(g.intake.take(), 1)
    await settle()
    assert len(g.intake.entries) == 2, "one is answered, so one more is taken"


async def test_unread_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_stream, "IN_FLIGHT_BYTES", 50_000)
    g = Gateway(greeting=NO_WINDOW)
    g.begin()
    g.ask(request("a"))
    answer(g.intake.take(), 1, size=20_000)
    g.ask(request("b"), request("c"))
    await settle()
    assert len(g.intake.entries) == 1, "the answer to the first waits for its caller"
    g.wire.send(settings({INITIAL_WINDOW_SIZE: 10**6}) + window_update(0, 10**6))
    await settle()
    assert len(g.intake.entries) == 2


async def test_ends_without_answers_count_as_in_flight_until_parts_are_read() -> None:
    g = Gateway(greeting=NO_WINDOW)
    g.begin()
    g.ask(*[request(str(number), model="many") for number in range(MAX_IN_FLIGHT + 1)])
    await settle()
    for _ in range(MAX_IN_FLIGHT):
        many = g.intake.take()
        part(many, 1)
        end(many)
    await settle()
    assert g.intake.entries == [], "nothing was read"
    g.wire.send(settings({INITIAL_WINDOW_SIZE: 10**6}))
    await settle()
    assert len(g.intake.entries) == 1


async def test_reader_that_keeps_up_holds_up_nothing() -> None:
    g = Gateway()
    g.begin()
    g.ask(request("m", model="many"))
    m = g.intake.take()
    for number in range(3 * MAX_UNREAD):
        assert part(m, number)
        await settle()


async def test_window_is_widened_for_a_large_message_and_no_further() -> None:
    g = Gateway(max_request_bytes=2**26)
    g.begin()
    large = message(bytes(3 * CALL_WINDOW))
    g.wire.send(frame(DATA, 0, 1, large[:10_000]))
    (given,) = g.wire.frames(WINDOW_UPDATE)[1:]
    assert given.stream == 1
    assert CALL_WINDOW + int.from_bytes(given.payload, "big") == len(large)


async def test_answers_over_the_share_of_a_connection_are_refused() -> None:
    g = Gateway(ByteBudget(400_000), greeting=NO_WINDOW)
    g.begin()
    g.ask(request("a"), request("b"))
    a, b = g.intake.entries
    answer(a, 1, size=20_000)
    answer(b, 2)
    g.wire.send(settings({INITIAL_WINDOW_SIZE: 10**6}) + window_update(0, 10**6))
    await settle()
    (_, first), (_, second) = g.said()
    assert first == 1
    assert "wait for their caller" in str(second)


async def test_large_answers_keep_their_order() -> None:
    g = Gateway(greeting=WIDE)
    g.begin()
    g.ask(request("m", model="many"), request("a"), request("b"), ended=True)
    m, a, b = g.intake.entries
    held = g.held_bytes
    part(m, 0, size=60_000)
    part(m, 1, size=60_000)
    part(m, 2)
    for _ in range(20):
        await settle()
    assert g.held_bytes == held, "answers that were sent are charged no more"
    end(m)
    answer(b, 4, size=60_000)
    answer(a, 3, size=60_000)
    for _ in range(20):
        await settle()
    assert g.said() == [("m", 0), ("m", 1), ("m", 2), ("a", 3), ("b", 4)]
    assert (g.status(), g.held_bytes) == (0, 0)


async def test_silent_streams_stay_open_and_half_messages_do_not() -> None:
    g = Gateway()
    g.begin()
    g.begin(3)
    g.ask(request("a", model="many"))
    at(g.wire, 10_000.0)
    assert g.status() is None
    g.wire.send(frame(DATA, 0, 3, b"\x00\x00"))
    at(g.wire, 20_000.0)
    assert (g.status(1), g.status(3)) == (None, 4)


async def test_streams_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_stream, "MAX_STREAMS", 2)
    g = Gateway()
    for stream in (101, 103, 105):
        g.begin(stream)
        await settle()
        g.wire.send(frame(DATA, END_STREAM, stream, b""))
        await settle()
        assert g.status(stream) == 0
    g = Gateway()
    for stream in (1, 3, 5):
        g.begin(stream)
    await settle()
    assert [g.status(stream) for stream in (1, 3, 5)] == [None, None, 8]
    g.wire.send(reset(1, Fault.CANCEL))
    g.begin(7)
    await settle()
    assert g.status(7) is None


async def test_shutdown_ends_streams() -> None:
    g = Gateway()
    g.begin()
    g.streams.leave()
    await settle()
    assert g.status() == 14


async def test_full_budget_refuses_a_request_and_not_its_stream() -> None:
    g = Gateway(ByteBudget(20_000))
    g.begin()
    g.budget.held_bytes += 20_000
    g.ask(request("a"))
    await settle()
    assert g.status() is None
    assert "max_buffered_bytes" in str(g.said())
    g.budget.held_bytes -= 20_000
    g.ask(request("b"))
    answer(g.intake.take(), 1)
    await settle()
    assert g.said()[1:] == [("b", 1)]


class Authorization:
    """That of a key, which may be revoked."""

    is_revoked = False

    def check(self) -> None:
        if self.is_revoked:
            raise UnauthenticatedError("revoked")

    def caller(self, model: str) -> None:
        self.check()
        if model == "many":
            raise ForbiddenError("not this model")


async def test_each_request_is_authorized() -> None:
    key = Authorization()
    g = Gateway(authorization=key)
    g.begin()
    g.ask(request("a"), request("b", model="many"))
    answer(g.intake.take(), 1)
    key.is_revoked = True
    g.ask(request("c"))
    await settle()
    assert g.said() == [("b", "not this model"), ("a", 1), ("c", "revoked")]
    assert g.intake.entries == []
    g.wire.send(frame(DATA, 0, 1, b"\x00\x00"))
    await settle()
    assert g.status() == 16, "a message in pieces is not awaited"


async def test_lost_connection_cancels_all_requests() -> None:
    g = Gateway()
    g.begin()
    g.begin(3)
    g.ask(request("a"), request("b"))
    g.ask(request("m", model="many"), stream=3)
    m = g.intake.entries[-1]
    part(m, 1)
    g.wire.lose()
    await settle()
    assert g.intake.discarded == ["cancelled"] * 3
    assert not part(m, 2), "its window is closed"
    assert g.budget.held_bytes == 0
    assert (g.counted("CANCELLED"), g.counted("CANCELLED", "many")) == (2, 1)


async def test_expired_request_fails_alone() -> None:
    g = Gateway()
    g.begin()
    late = request("a")
    late.parameters["timeout"].int64_param = 1
    g.ask(late, request("b"))
    a, b = g.intake.entries
    a.expire()
    answer(b, 2)
    await settle()
    (_, first), second = g.said()
    assert "deadline" in str(first)
    assert second == ("b", 2)


async def test_a_turn_of_the_loop_takes_some_messages() -> None:
    g = Gateway()
    g.begin()
    await settle()
    some = frame(DATA, 0, 1, message(request("a").SerializeToString())) * (MAX_IN_FLIGHT - 1)
    g.wire.send(some + frame(PING, 0, 0, bytes(8)))
    assert g.wire.frames(PING) == [], "it is behind messages of the next turn"
    await settle()
    assert len(g.wire.frames(PING)) == 1
    assert len(g.intake.entries) == MAX_IN_FLIGHT - 1
