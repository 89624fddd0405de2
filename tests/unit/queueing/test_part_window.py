"""The window of a request with many answers: its two limits, and threads that give and read."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.tensors import Array
from services.queueing.part_window import (
    MAX_UNREAD,
    MAX_UNREAD_SMALL,
    SMALL_PART_BYTES,
    PartWindow,
    is_small_part,
)


@given(st.lists(st.sampled_from(["small", "large", "read"]), max_size=300))
def test_more_small_parts_than_large_ones_may_be_unread(acts: list[str]) -> None:
    window, unread = PartWindow(), 0
    for act in acts:
        if act == "read":
            if unread:
                window.take()
                unread -= 1
            continue
        limit = MAX_UNREAD_SMALL if act == "small" else MAX_UNREAD
        if unread < limit:
            assert window.give(0, is_small=act == "small")
            unread += 1
        assert window.unread == unread <= MAX_UNREAD_SMALL


def test_a_full_window_gives_up_a_reader_that_takes_nothing() -> None:
    window = PartWindow()
    assert all(window.give(0) for _ in range(MAX_UNREAD))
    assert not window.give(0)
    assert window.is_unread
    assert window.unread == MAX_UNREAD


def test_every_part_that_a_thread_gives_is_read_by_another() -> None:
    window, told = PartWindow(), threading.Semaphore(0)
    parts = 20_000

    def give() -> None:
        for _ in range(parts):
            assert window.give(60, is_small=True)
            told.release()

    giver = threading.Thread(target=give)
    giver.start()
    for _ in range(parts):
        told.acquire()
        assert window.unread <= MAX_UNREAD_SMALL + 1
        window.take()
    giver.join()
    assert (window.given, window.unread) == (parts, 0)


def test_closing_ends_the_wait() -> None:
    window = PartWindow()
    assert all(window.give(0) for _ in range(MAX_UNREAD))
    waiting = threading.Thread(target=window.give, args=(60,))
    waiting.start()
    window.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert not window.is_unread


def texts(*given: bytes) -> Array:
    array: Array = np.empty(len(given), object)
    array[:] = given
    return array


@pytest.mark.parametrize(
    ("outputs", "is_small"),
    [
        ({"y": np.zeros((1, 4), np.float32)}, True),
        ({"y": np.zeros(SMALL_PART_BYTES, np.uint8)}, True),
        ({"y": np.zeros(SMALL_PART_BYTES, np.uint8), "z": np.zeros(1, bool)}, False),
        ({"y": texts(b"token")}, True),
        ({"y": texts(b"x" * SMALL_PART_BYTES), "z": np.zeros(1, bool)}, False),
        ({"y": texts(b"", b"")}, False),
    ],
)
def test_a_part_is_small_by_the_bytes_of_all_its_outputs(
    outputs: dict[str, Array], is_small: bool
) -> None:
    assert is_small_part(outputs) is is_small
