"""Event loop lag: visible for a blocked loop, absent for an idle one."""

import asyncio
import threading
import time
from typing import Any

import pytest

from services.telemetry import loop_lag
from services.telemetry.loop_lag import sampling_lag
from services.telemetry.loop_metrics import HistogramChild

HELD_S = 0.05


class Samples(HistogramChild):
    """Keeps what it is told, and tells who waits for it."""

    def __init__(self) -> None:
        super().__init__([])
        self.seconds: list[float] = []
        self.came = asyncio.Event()

    def observe(self, value: float, exemplar: str = "") -> None:
        self.seconds.append(value)
        self.came.set()

    async def next(self) -> float:
        self.came.clear()
        await self.came.wait()
        return self.seconds[-1]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 0.002)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


async def test_a_loop_that_is_held_is_seen() -> None:
    samples = Samples()
    with sampling_lag(samples):
        await samples.next()
        time.sleep(HELD_S)  # noqa: ASYNC251 - the very thing to be seen
        await samples.next()
    assert HELD_S / 2 < max(samples.seconds) < 10


async def test_samples_keep_coming_while_the_loop_is_free() -> None:
    samples = Samples()
    with sampling_lag(samples):
        found = [await samples.next() for _ in range(5)]
    assert min(found) < HELD_S / 2
    assert min(found) >= 0


async def test_the_thread_ends_with_the_block() -> None:
    samples = Samples()
    with sampling_lag(samples):
        assert "loop-lag" in threads()
    assert "loop-lag" not in threads()


def test_a_loop_that_closes_first_harms_nothing() -> None:
    refused = threading.Event()

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        ask = loop.call_soon_threadsafe

        def asked(*arguments: Any) -> Any:
            try:
                return ask(*arguments)
            except RuntimeError:
                refused.set()
                raise

        loop.call_soon_threadsafe = asked  # type: ignore[assignment]
        sampling.__enter__()

    sampling = sampling_lag(HistogramChild([]))
    asyncio.run(begin())
    refused.clear()
    assert refused.wait(10)
    refused.clear()
    assert refused.wait(10), "it asked no more after it was refused once"
    sampling.__exit__(None, None, None)
    assert "loop-lag" not in threads()
