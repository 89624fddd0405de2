"""Frames as bytes: parsed by hyperframe, a third-party library, and refused if malformed."""

import pytest
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from services.wire.http2.frames import (
    DATA,
    END_STREAM,
    FIRST_FRAME_BYTES,
    HEAD_BYTES,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ConnectionFaultError,
    Fault,
    frame,
    goaway,
    number,
    read_settings,
    reset,
    settings,
    unpadded,
    window_update,
)

STREAMS = st.integers(1, MAX_WINDOW)
VALUES = {
    INITIAL_WINDOW_SIZE: st.integers(0, MAX_WINDOW),
    MAX_FRAME_SIZE: st.integers(FIRST_FRAME_BYTES, 2**24 - 1),
}


def read(data: bytes) -> Frame:
    """Parses one frame without trailing bytes."""
    found, length = Frame.parse_frame_header(memoryview(data[:HEAD_BYTES]))
    assert len(data) == HEAD_BYTES + length
    found.parse_body(memoryview(data[HEAD_BYTES:]))
    return found


@given(st.binary(max_size=70_000), STREAMS)
def test_frame(payload: bytes, stream: int) -> None:
    found = read(frame(DATA, END_STREAM, stream, payload))
    assert isinstance(found, DataFrame)
    assert (found.stream_id, found.data, set(found.flags)) == (stream, payload, {"END_STREAM"})


@given(STREAMS, st.sampled_from(Fault), st.integers(1, MAX_WINDOW), st.text(max_size=50))
def test_frames_of_numbers(stream: int, fault: Fault, increment: int, words: str) -> None:
    found = read(reset(stream, fault))
    assert isinstance(found, RstStreamFrame)
    assert (found.stream_id, found.error_code) == (stream, fault)
    found = read(goaway(stream, fault, words))
    assert isinstance(found, GoAwayFrame)
    assert (found.stream_id, found.last_stream_id, found.error_code) == (0, stream, fault)
    assert found.additional_data == words.encode()
    found = read(window_update(stream, increment))
    assert isinstance(found, WindowUpdateFrame)
    assert (found.stream_id, found.window_increment) == (stream, increment)


@given(st.data(), st.lists(st.integers(0, 0xFFFF), unique=True, max_size=20))
def test_settings_come_back(data: st.DataObject, names: list[int]) -> None:
    values = {
        name: data.draw(VALUES.get(name, st.integers(0, 2**32 - 1)), f"value of {name}")
        for name in names
    }
    written = settings(values)
    assert read_settings(written[HEAD_BYTES:]) == list(values.items())
    found = read(written)
    assert isinstance(found, SettingsFrame)
    assert found.settings == values


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        (INITIAL_WINDOW_SIZE, MAX_WINDOW + 1, Fault.FLOW_CONTROL_ERROR),
        (MAX_FRAME_SIZE, FIRST_FRAME_BYTES - 1, Fault.PROTOCOL_ERROR),
        (MAX_FRAME_SIZE, 2**24, Fault.PROTOCOL_ERROR),
    ],
)
def test_setting_outside_its_range(name: int, value: int, fault: Fault) -> None:
    with pytest.raises(ConnectionFaultError) as raised:
        read_settings(settings({0x7777: 1, name: value})[HEAD_BYTES:])
    assert raised.value.fault == fault


@given(st.binary(max_size=40).filter(lambda payload: len(payload) % 6))
def test_settings_of_a_broken_length(payload: bytes) -> None:
    with pytest.raises(ConnectionFaultError) as raised:
        read_settings(payload)
    assert raised.value.fault == Fault.FRAME_SIZE_ERROR


@given(st.binary(max_size=300), st.integers(0, 255))
def test_padding_is_taken_away(content: bytes, padding: int) -> None:
    """Padding made by hyperframe is removed."""
    padded = HeadersFrame(1, content, pad_length=padding, flags=["PADDED"]).serialize()
    assert unpadded(padded[HEAD_BYTES:]) == content


@given(st.binary(max_size=20), st.integers(1, 255))
def test_padding_beyond_the_frame(content: bytes, beyond: int) -> None:
    payload = bytes((min(255, len(content) + beyond),)) + content
    with pytest.raises(ConnectionFaultError, match="padding"):
        unpadded(payload)
    with pytest.raises(ConnectionFaultError, match="padding"):
        unpadded(b"")


def test_reserved_bit_is_no_part_of_a_number() -> None:
    assert number(b"\x80\x00\x00\x05") == 5
