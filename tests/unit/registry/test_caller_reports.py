"""Reports of callers: their bytes, their limits, and several of them together."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry.callers.caller_reports import (
    MAX_REPORT_BYTES,
    InvalidReportError,
    decode_report,
    encode_report,
    together,
)
from services.registry.callers.recent_callers import (
    MAX_CALLER_NAME,
    MAX_CALLERS,
    MAX_KINDS,
    SeenCaller,
    SentKind,
)
from tests.unit.registry.test_recent_callers import LIVE, STEP_S, Sender, signed, tensor

names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)


@st.composite
def kinds(draw: st.DrawFn) -> SentKind:
    """Draws requests that fit some signature."""
    inputs, smallest, largest = [], [], []
    for name in draw(st.lists(names, max_size=3, unique=True)):
        declared = draw(st.lists(st.integers(-1, 9), max_size=4).map(tuple))
        ends = [sorted(draw(st.tuples(*[st.integers(0, 2**40)] * 2))) for _ in declared]
        inputs.append((name, draw(st.sampled_from(["FP32", "BYTES"])), declared))
        smallest.append(tuple(low for low, _ in ends))
        largest.append(tuple(high for _, high in ends))
    outputs = draw(st.lists(names, max_size=2).map(tuple))
    times = draw(st.integers(1, 2**53))
    return SentKind(
        tuple(inputs), outputs, draw(st.booleans()), tuple(smallest), tuple(largest), times
    )


callers = st.builds(SeenCaller, names, st.lists(kinds(), min_size=1, max_size=MAX_KINDS).map(tuple))
seen = st.lists(callers, max_size=5, unique_by=lambda one: one.name)


@given(seen)
def test_a_report_is_read_as_it_was_written(found: list[SeenCaller]) -> None:
    report = decode_report(encode_report(found))
    assert sorted(report.callers) == sorted(found)
    assert report.left_out == 0


@given(seen, st.data())
def test_a_damaged_report_is_read_or_refused(found: list[SeenCaller], data: st.DataObject) -> None:
    damaged = bytearray(encode_report(found))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for read in (bytes(damaged), bytes(damaged[: data.draw(st.integers(0, len(damaged)))])):
        try:
            assert encode_report(decode_report(read).callers)
        except InvalidReportError as error:
            assert str(error)  # noqa: PT017 - most damage is refused, some gives another report


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_report(data)
    except InvalidReportError as error:
        assert str(error)  # noqa: PT017


def kind(**changed: Any) -> dict[str, Any]:
    fields = {
        "inputs": [["x", "FP32", [-1, 4]]], "outputs": [], "is_step": False,
        "smallest": [[1, 4]], "largest": [[8, 4]], "times": 3,
    }  # fmt: skip
    return fields | changed


def report_of(*kinds: dict[str, Any], name: str = "key:ci", callers: int = 1) -> bytes:
    caller = [name, [list(one.values()) for one in kinds]]
    return msgspec.msgpack.encode([[caller] * callers, 0])


def test_a_plain_report_is_read() -> None:
    [caller] = decode_report(report_of(kind())).callers
    assert caller.name == "key:ci"
    assert caller.kinds[0].largest == ((8, 4),)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (b"\xdd\xff\xff\xff\xff", "length 1 to 2"),
        (b"\x92\xdd\xff\xff\xff\xff", "length <= 33"),
        (b"\x91" * 30_000, "length 2"),
        (b"x" * (MAX_REPORT_BYTES + 1), "at most 32768 are read"),
        (report_of(kind(), name=""), "length >= 1"),
        (report_of(kind(), name="k" * (MAX_CALLER_NAME + 1)), "length <= 256"),
        (report_of(kind(), name="key:\n"), "not printable"),
        (report_of(kind(), callers=MAX_CALLERS + 2), "length <= 33"),
        (report_of(*[kind()] * (MAX_KINDS + 1)), "length <= 4"),
        (report_of(), "length >= 1"),
        (report_of(kind(times=0)), "`int` >= 1"),
        (report_of(kind(times=2**60)), "`int` <= 9007199254740992"),
        (report_of(kind(smallest=[[1]])), "sizes of a request"),
        (report_of(kind(largest=[])), "sizes of a request"),
        (report_of(kind(smallest=[[-2, 4]])), "`int` >= -1"),
        (report_of(kind(inputs=[["x", "FP32", [4] * 33]])), "length <= 32"),
        (report_of(kind(inputs=[["x", "FP32", [4]]] * 2, smallest=[[4]] * 2, largest=[[4]] * 2)),
         "occurs twice"),
    ],
)  # fmt: skip
def test_a_malformed_report_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidReportError, match=said):
        decode_report(data)


def test_callers_beyond_the_room_of_a_report_are_left_out_and_counted() -> None:
    sender = Sender(signed(*(tensor("x" * 200 + str(n)) for n in range(40))))
    for number in range(MAX_CALLERS):
        inputs = [(spec.name, "FP32", (1,)) for spec in sender.signature.inputs]
        for time in range(number + 1):
            sender.now += STEP_S
            assert sender.callers.is_due("m", f"key:{number}", sender.now), time
            sender.callers.look(
                "m", f"key:{number}", inputs, (), is_step=False, signature=sender.signature,
                now=sender.now,
            )  # fmt: skip
    data = encode_report(sender.callers.seen("m", sender.now))
    report = decode_report(data)
    assert len(data) <= MAX_REPORT_BYTES
    assert [one.name for one in report.callers] == ["key:31", "key:30", "key:29"]
    assert report.left_out == MAX_CALLERS - 3


def test_a_name_is_shortened_and_printable_for_any_caller() -> None:
    sender = Sender()
    sender.send("jwt:" + "x" * 5_000)
    sender.send("jwt:\n\ud800")
    report = decode_report(encode_report(sender.callers.seen("m", sender.now)))
    assert {one.name for one in report.callers} == {"jwt:" + "x" * 252, "jwt:??"}


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 40), st.booleans()),
        max_size=30,
    )
)
def test_reports_together_are_as_one_process_would_have_seen_them(
    requests: list[tuple[int, int, int, bool]],
) -> None:
    whole, parts = Sender(LIVE), [Sender(LIVE) for _ in range(3)]
    for process, caller, rows, asks in requests:
        for sender in (whole, parts[process]):
            outputs = ["y"] if asks else []
            sender.send(f"key:{caller}", x=(rows, 4), outputs=outputs)
    reports = [decode_report(encode_report(one.callers.seen("m", one.now))) for one in parts]
    found = together(report.callers for report in reports)
    expected = whole.callers.seen("m", whole.now)
    assert {one.name: sorted(one.kinds) for one in found} == {
        one.name: sorted(one.kinds) for one in expected
    }
