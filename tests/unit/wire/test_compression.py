"""Content-Encoding: round trips, size limits, and short work on the event loop."""

import asyncio
import contextlib
import errno
import gc
import gzip
import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import (
    BufferFullError,
    InvalidRequestError,
    PayloadTooLargeError,
    ServingError,
)
from services.resident_memory import resident_bytes
from services.wire.body import Body
from services.wire.byte_budget import ByteBudget
from services.wire.compression import (
    INLINE_BYTES,
    CompressionThread,
    Inflation,
    accepted_encoding,
    compress,
    decompress,
)
from tests.unit.wire.http_wire import make_budget

PLAIN: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


@given(st.lists(st.binary(max_size=200), max_size=4), st.sampled_from(sorted(PLAIN)))
def test_compressed_answer_can_be_read(parts: list[bytes], encoding: str) -> None:
    assert PLAIN[encoding](b"".join(compress(parts, encoding))) == b"".join(parts)


@given(st.binary(max_size=200), st.sampled_from(sorted(PLAIN)), st.integers(0, 250))
def test_limit_of_what_comes_out(data: bytes, encoding: str, limit: int) -> None:
    packed = b"".join(compress([data], encoding))
    if len(data) > limit:
        with pytest.raises(PayloadTooLargeError, match=f"over {limit} bytes"):
            decompress(packed, encoding, limit)
    else:
        assert decompress(packed, encoding, limit) == data


@given(st.binary(max_size=60))
def test_any_bytes_decompress_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(ServingError):
        assert len(decompress(data, "gzip", 1000)) <= 1000


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("", ""), ("gzip", "gzip"), ("deflate", "deflate"), ("deflate, gzip", "gzip"),
        ("GZIP;q=0.1", "gzip"), ("gzip;q=0", ""), ("gzip; q=0.000, deflate", "deflate"),
        ("br", ""), ("identity", ""), ("gzip2", ""), (",,;", ""),
    ],
)  # fmt: skip
def test_accepted_encoding(accept: str, encoding: str) -> None:
    assert accepted_encoding(accept) == encoding


SMALL, LARGE = b"x" * 100, b"x" * (INLINE_BYTES + 1)
NOISE = bytes(range(256)) * (INLINE_BYTES // 128)


@pytest.fixture
def threads_used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each part of a decompression if it ran on another thread than the test's."""
    used: list[bool] = []
    loop_thread, real = threading.get_ident(), Inflation.step

    def spy(inflation: Inflation, at_most: int) -> None:
        used.append(threading.get_ident() != loop_thread)
        real(inflation, at_most)

    monkeypatch.setattr(Inflation, "step", spy)
    return used


async def decompressed(
    body: bytes, max_bytes: int, budget: ByteBudget | None = None
) -> Body | ServingError:
    thread, outcome = CompressionThread(), asyncio.get_running_loop().create_future()
    budget = budget or make_budget()
    thread.decompress(
        body,
        "gzip",
        max_bytes,
        budget=budget,
        is_wanted=lambda: not outcome.cancelled(),
        done=outcome.set_result,
    )
    try:
        return await asyncio.wait_for(outcome, 10)
    finally:
        thread.close()
        assert budget.held_bytes == 0


@pytest.mark.parametrize(
    ("plain", "limit", "used"),
    [
        (SMALL, 10**6, [False]),
        (LARGE, 10**6, [False, True]),  # small until it is looked at
        (LARGE[:-1], 10**6, [False]),
        (NOISE * 50, 10**8, [False, True]),
    ],
    ids=["small", "large", "just small", "bomb"],
)
async def test_large_bodies_leave_the_loop(
    plain: bytes, limit: int, used: list[bool], threads_used: list[bool]
) -> None:
    assert await decompressed(gzip.compress(plain), limit) == plain
    assert sorted(set(threads_used)) == used


async def test_slices_are_charged_before_the_next_one_comes(threads_used: list[bool]) -> None:
    bomb = gzip.compress(bytes(40 * 2**20))
    outcome = await decompressed(bomb, 64 * 2**20, ByteBudget(8 * 2**20))
    assert isinstance(outcome, BufferFullError)
    assert len(threads_used) < 12, "most of it was never inflated"
    plain = await decompressed(bomb, 64 * 2**20, ByteBudget(64 * 2**20))
    assert plain == bytes(40 * 2**20)


async def test_nothing_is_inflated_for_those_who_have_gone(threads_used: list[bool]) -> None:
    thread, budget = CompressionThread(), make_budget()
    outcome = asyncio.get_running_loop().create_future()
    thread.decompress(
        gzip.compress(bytes(40 * 2**20)),
        "gzip",
        64 * 2**20,
        budget=budget,
        is_wanted=lambda: False,
        done=outcome.set_result,
    )
    assert isinstance(await asyncio.wait_for(outcome, 10), ServingError)
    assert len(threads_used) == 2, "one look on the loop, and one slice"
    assert budget.held_bytes == 0
    thread.close()


async def test_whoever_waited_is_free_once_it_is_over() -> None:
    """Not when the garbage collector comes: an exchange holds its answer."""

    class Waiting:
        def __init__(self) -> None:
            self.over = asyncio.Event()

        def done(self, outcome: Body | ServingError) -> None:
            self.over.set()

    thread, waiting = CompressionThread(), Waiting()
    over, gone = waiting.over, weakref.ref(waiting)
    gc.disable()
    try:
        thread.decompress(
            b"".join(compress([NOISE * 50], "gzip")), "gzip", 10**8,
            budget=make_budget(), is_wanted=lambda: True, done=waiting.done,
        )  # fmt: skip
        del waiting
        await asyncio.wait_for(over.wait(), 10)
        async with asyncio.timeout(10):
            while gone() is not None:  # noqa: ASYNC110 - the thread lets go of its work
                await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()
        thread.close()


async def test_large_compressed_bodies_never_touch_the_loop(threads_used: list[bool]) -> None:
    noise = gzip.compress(threading.get_ident().to_bytes(8, "big") * 20_000, 0)
    assert len(noise) > INLINE_BYTES
    assert isinstance(await decompressed(noise, 10**6), memoryview)
    assert threads_used == [True]


@pytest.mark.parametrize(
    ("body", "limit", "error", "used"),
    [
        (gzip.compress(LARGE, mtime=0), INLINE_BYTES, PayloadTooLargeError, [False]),
        (gzip.compress(LARGE, mtime=0), INLINE_BYTES - 5, PayloadTooLargeError, [False]),
        (gzip.compress(LARGE * 2, mtime=0), len(LARGE), PayloadTooLargeError, [False, True]),
        (b"nonsense", 10**6, InvalidRequestError, [False]),
        (b"nonsense" * 10_000, 10**6, InvalidRequestError, [True]),
    ],
)
async def test_refusals(
    body: bytes, limit: int, error: type[ServingError], used: list[bool], threads_used: list[bool]
) -> None:
    outcome = await decompressed(body, limit)
    assert isinstance(outcome, error)
    assert sorted(set(threads_used)) == used


@pytest.mark.parametrize("size", [100, INLINE_BYTES, INLINE_BYTES + 1, 10**6])
async def test_answers_of_any_size(size: int) -> None:
    thread, outcome = CompressionThread(), asyncio.get_running_loop().create_future()
    thread.compress([b"a", b"x" * size], "gzip", outcome.set_result)
    assert outcome.done() == (size < INLINE_BYTES)
    assert gzip.decompress(b"".join(await outcome)) == b"a" + b"x" * size
    thread.close()


def test_a_body_takes_the_memory_that_it_is_charged() -> None:
    """Each took up to as much again on systems that provide 2 MiB at a time."""
    packed = b"".join(compress([bytes(2_000_000)], "gzip"))

    before = resident_bytes(os.getpid())
    plain = [decompress(packed, "gzip", 2**26) for _ in range(30)]
    assert resident_bytes(os.getpid()) - before < 1.3 * sum(map(len, plain))


async def test_a_body_that_there_is_no_memory_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", no_memory)
    packed = b"".join(compress([bytes(1_000_000)], "gzip"))
    thread, found = CompressionThread(), asyncio.get_running_loop().create_future()
    budget = make_budget()
    thread.decompress(
        packed, "gzip", 2**26, budget=budget, is_wanted=lambda: True, done=found.set_result
    )
    assert isinstance(await found, BufferFullError)
    assert budget.held_bytes == 0
    thread.close()
