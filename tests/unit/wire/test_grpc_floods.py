"""Floods: frames and calls without benefit for the peer, and the budget that closes connections."""

import asyncio
from collections.abc import Callable
from unittest.mock import ANY

import pytest

from services.wire.http2.calm import (
    A_SECOND,
    CAPACITY,
    FAULT_COST,
    MAX_SETTINGS_BYTES,
    SETTINGS_COST,
    WAITING_A_FRAME,
    Calm,
    cost_of_settings,
)
from services.wire.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    ConnectionFaultError,
    Fault,
    frame,
    reset,
    settings,
    window_update,
)
from tests.unit.wire.http2_wire import (
    Service,
    Wire,
    begin,
    call,
    wire,
)
from tests.unit.wire.http_wire import settle
from tests.unit.wire.test_grpc_limits import late

FLOODS = {
    "ping": frame(PING, 0, 0, b"12345678"),
    "ping answers": frame(PING, ACK, 0, b"12345678"),
    "settings": settings({INITIAL_WINDOW_SIZE: 1}),
    "settings answers": frame(SETTINGS, ACK, 0),
    "window of the connection": window_update(0, 1),
    "window of a call": window_update(1, 1),
    "window of a call that is over": window_update(3, 1023),
    "priority": frame(PRIORITY, 0, 1, b"\0\0\0\0\1"),
    "unknown": frame(99, 0, 0, b"x"),
    "empty data": frame(DATA, 0, 1),
    "data of a byte": frame(DATA, 0, 1, b"x"),
    "empty data of a call that is over": frame(DATA, 0, 3),
    "data of a call that is over": frame(DATA, 0, 3, bytes(40)),
    "padding": frame(DATA, PADDED, 1, b"\x28" + bytes(40)),
    "resets of a call that is over": reset(3, Fault.CANCEL),
    "trailers of a call that is over": frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x82"),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_frames_ends_the_connection(flood: bytes) -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1, "/t/Held") + call(3))
    nearly_out(w)
    w.send(flood * (LEFT // 10))
    await settle()
    assert w.last_words() is None
    w.send(flood * LEFT)
    await settle()
    told = w.last_words()
    assert told is not None
    assert told[0] == Fault.ENHANCE_YOUR_CALM
    assert told[1].startswith(f"a flood: over {CAPACITY} frames such as ")
    assert service.open_calls == 0
    assert floods(w) == 1


LEFT = 300
"""Frames, for tests that are not to send all of them."""


def nearly_out(w: Wire) -> None:
    """Leaves a part of the budget, to which time adds nothing."""
    w.connection.calm = Calm(asyncio.get_running_loop().time() + 1000)
    w.connection.calm.left = LEFT


def floods(w: Wire) -> float:
    """Connections that were ended for one."""
    (family,) = w.connection.port.floods.collect()
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


def rapid_reset(stream: int) -> bytes:
    """CVE-2023-44487."""
    return begin(stream, "/t/Held") + reset(stream, Fault.CANCEL)


async def test_settings_count_for_all_calls_that_wait_too() -> None:
    """Each has them looked at again."""
    w = wire(greeting=PREFACE + settings({INITIAL_WINDOW_SIZE: 0}))
    for stream in range(1, 801, 2):
        w.send(call(stream))
        await asyncio.sleep(0)
    nearly_out(w)
    cost = SETTINGS_COST + 400 // WAITING_A_FRAME
    for _ in range(LEFT // cost + 1):
        assert w.last_words() is None
        w.send(settings({INITIAL_WINDOW_SIZE: 0}))
        await settle()
    assert w.last_words() == (Fault.ENHANCE_YOUR_CALM, ANY)


@pytest.mark.parametrize("count", [MAX_SETTINGS_BYTES // 6, MAX_SETTINGS_BYTES // 6 + 1])
async def test_settings_of_one_frame_have_a_limit(count: int) -> None:
    w = wire()
    w.send(frame(SETTINGS, 0, 0, b"\x00\x10\x00\x00\x00\x00" * count))
    await settle()
    calm = count * 6 <= MAX_SETTINGS_BYTES
    assert w.last_words() == (None if calm else (Fault.ENHANCE_YOUR_CALM, ANY))
    assert floods(w) == (0 if calm else 1)


def made_to_reset(stream: int) -> bytes:
    """CVE-2025-8671: the caller's fault has us reset its call."""
    return begin(stream, "/t/Held") + window_update(stream, 0)


def malformed(stream: int) -> bytes:
    """Fields that are no request."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82")


@pytest.mark.parametrize("one", [rapid_reset, made_to_reset, malformed, late])
async def test_a_flood_of_calls_that_come_to_nothing_ends_the_connection(
    one: Callable[[int], bytes],
) -> None:
    service = Service()
    w = wire(service)
    nearly_out(w)
    for stream in range(1, 4 * LEFT, 2):
        w.send(one(stream))
        if stream % 32 == 1:
            await settle()
        if w.last_words() is not None:
            break
    assert w.last_words() == (Fault.ENHANCE_YOUR_CALM, ANY)
    assert stream > LEFT // FAULT_COST
    assert service.open_calls == 0
    assert floods(w) == 1


async def test_answers_pay_for_what_honest_callers_say_beside_them() -> None:
    """Two small window updates, a ping and an empty frame a call, for as long as it likes."""
    w = wire()
    nearly_out(w)
    beside = window_update(0, 10) * 2 + frame(PING, 0, 0, b"12345678")
    for stream in range(1, 4 * LEFT, 2):
        w.send(call(stream) + beside + window_update(stream, 10))
        if stream % 32 == 1:
            await asyncio.sleep(0)
    await settle()
    assert w.last_words() is None


@pytest.mark.parametrize("idle_s", [0, 1, 3600])
def test_too_many_settings_in_a_frame_cost_more_than_any_budget(idle_s: int) -> None:
    calm = Calm(100.0)
    calm.left -= cost_of_settings(bytes(MAX_SETTINGS_BYTES + 6), 0)
    with pytest.raises(ConnectionFaultError, match="settings"):
        calm.refill(100.0 + idle_s, "settings")


def test_the_budget_grows_with_time() -> None:
    calm = Calm(100.0)
    calm.left = -1
    calm.refill(101.0, "ping")
    assert calm.left == A_SECOND - 1
    calm.left = -1
    calm.refill(1000.0, "ping")
    assert calm.left == CAPACITY - 1
    calm.left = -1
    with pytest.raises(ConnectionFaultError, match="frames such as ping"):
        calm.refill(1000.0, "ping")
