"""Answers that a handler sends before it returns, in TorchServe's messages."""

import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flambeau.torchserve.intermediate_answers import (
    CallersLeftError,
    IntermediateAnswers,
    parsed_message,
)
from model_store.archives.handler_calls import HandlerAnswer


def text(value: str) -> bytes:
    return struct.pack("!i", len(value.encode())) + value.encode()


def message_of(**bodies: str) -> bytes:
    """Returns a message as TorchServe's `create_predict_response` makes it."""
    parts = [struct.pack("!i", 200), text("Intermediate Prediction success")]
    for identity, body in bodies.items():
        headers = struct.pack("!i", 2) + text("ts_stream_next") + text("true")
        headers += text("X-Part") + text("1")
        parts += [text(identity), text("text/plain"), struct.pack("!i", 200), text(""), headers]
        parts.append(text(body))
    return b"".join([*parts, struct.pack("!i", -1)])


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_a_message_is_read() -> None:
    found = parsed_message(message_of(a="one", b="two"))
    assert [one.body for one in found.values()] == [b"one", b"two"]
    assert found["a"].headers == {"X-Part": "1", "content-type": "text/plain"}


@pytest.mark.parametrize("size", range(0, 40, 3))
def test_a_message_that_is_cut_off_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match="a message of"):
        parsed_message(message_of(a="one")[:size])


def test_parts_come_as_they_are_sent_and_wait_until_they_are_read(
    thread: ThreadPoolExecutor,
) -> None:
    parts, sent = IntermediateAnswers(), []

    def call() -> list[HandlerAnswer]:
        for number in range(3):
            parts.sendall(message_of(b=f"b{number}", a=f"a{number}"))
            sent.append(number)
        return [HandlerAnswer(body=b"last a"), HandlerAnswer(body=b"last b")]

    found = parts.during(call, ["a", "b"], thread)
    assert [one.body for one in next(found)] == [b"a0", b"b0"]
    assert sent == []
    rest = [[one.body for one in answers] for answers in found]
    assert rest == [[b"a1", b"b1"], [b"a2", b"b2"], [b"last a", b"last b"]]


def test_a_call_whose_callers_left_ends_at_its_next_part(thread: ThreadPoolExecutor) -> None:
    parts, ended = IntermediateAnswers(), threading.Event()

    def call() -> list[HandlerAnswer]:
        try:
            while True:
                parts.sendall(message_of(a="more"))
        except CallersLeftError:
            ended.set()
            raise

    found = parts.during(call, ["a"], thread)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert ended.is_set()
    again = parts.during(lambda: [HandlerAnswer(body=b"fine")], ["a"], thread)
    assert [[one.body for one in answers] for answers in again] == [[b"fine"]]


def test_an_error_of_the_call_is_raised(thread: ThreadPoolExecutor) -> None:
    def call() -> list[HandlerAnswer]:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        list(IntermediateAnswers().during(call, ["a"], thread))


def test_parts_that_come_too_late_are_those_of_no_batch(thread: ThreadPoolExecutor) -> None:
    parts = IntermediateAnswers()
    assert list(parts.during(lambda: [HandlerAnswer(body=b"first")], ["a"], thread))
    with pytest.raises(CallersLeftError, match="no batch runs"):
        parts.sendall(message_of(a="secret of the first"))
    (second,) = parts.during(lambda: [HandlerAnswer(body=b"second")], ["a"], thread)
    assert [one.body for one in second] == [b"second"]


def test_parts_of_an_earlier_batch_are_not_the_next_ones(thread: ThreadPoolExecutor) -> None:
    parts = IntermediateAnswers()

    def call() -> list[HandlerAnswer]:
        with pytest.raises(CallersLeftError, match="of an earlier batch"):
            parts.sendall(message_of(a="secret of the first"))
        return [HandlerAnswer(body=b"second")]

    (second,) = parts.during(call, ["b"], thread)
    assert [one.body for one in second] == [b"second"]
