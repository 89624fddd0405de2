"""Health endpoints of a process beside its metrics."""

import asyncio
import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from services import ports
from services.ports import LIVE_PATH, READY_PATH, PortError, check_free, listen, metrics_server


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_ready_is_what_the_process_says_and_live_is_not() -> None:
    reason = "no model"
    with metrics_server("127.0.0.1", 0, CollectorRegistry(), lambda: reason) as port:
        assert await asyncio.to_thread(fetch, port, READY_PATH) == (503, "no model")
        assert await asyncio.to_thread(fetch, port, LIVE_PATH) == (200, "")
        reason = ""
        assert await asyncio.to_thread(fetch, port, READY_PATH) == (200, "")


async def test_metrics_are_where_they_were() -> None:
    registry = CollectorRegistry()
    Gauge("flambeau_here", "A gauge.", registry=registry).set(3)
    with metrics_server("127.0.0.1", 0, registry, lambda: "not ready") as port:
        for path in ("/metrics", "/"):
            status, text = await asyncio.to_thread(fetch, port, path)
            assert status == 200
            assert "flambeau_here 3.0" in text


class Loose(Collector):
    """A collector that does not tell its names before a scrape."""

    def collect(self) -> Iterable[Metric]:
        """Yields two families."""
        for name in ("ts_inference_requests_total", "QueueTime"):
            family = Metric(name, "A metric.", "unknown")
            family.add_sample(name, {}, 1.0)
            yield family


async def test_metrics_are_selected_by_name() -> None:
    registry = CollectorRegistry()
    registry.register(Loose())
    with metrics_server("127.0.0.1", 0, registry, lambda: "") as port:
        path = "/metrics?name%5B%5D=ts_inference_requests_total"
        status, text = await asyncio.to_thread(fetch, port, path)
        assert status == 200
        assert "ts_inference_requests_total 1.0" in text
        assert "QueueTime" not in text


async def test_a_blocked_event_loop_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LOOP_ANSWERS_WITHIN_S", 0.2)
    with metrics_server("127.0.0.1", 0, CollectorRegistry(), lambda: "") as port:
        asked = asyncio.create_task(asyncio.to_thread(fetch, port, LIVE_PATH))
        await asyncio.sleep(0)
        time.sleep(1)  # noqa: ASYNC251 - the block is what is tested
        assert await asked == (503, "the event loop has not answered for 0.2 s")
        assert (await asyncio.to_thread(fetch, port, LIVE_PATH))[0] == 200


async def test_connections_that_ask_for_nothing_keep_no_probe_away_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "MAX_METRICS_CONNECTIONS", 3)
    with metrics_server("127.0.0.1", 0, CollectorRegistry(), lambda: "") as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        further = socket.create_connection(("127.0.0.1", port))
        assert await asyncio.to_thread(further.recv, 1) == b""  # closed at once
        silent.pop().close()
        fetched = None
        while fetched is None:  # until the thread of the closed one has ended
            with contextlib.suppress(OSError):
                fetched = await asyncio.to_thread(fetch, port, LIVE_PATH)
        assert fetched == (200, "")
        for one in (*silent, further):
            one.close()


async def test_only_so_many_scrapes_are_written_at_once() -> None:
    """Each thread that writes a page keeps the interpreter lock from the event loop for a while."""
    running, may_end = threading.Semaphore(0), threading.Event()

    class Slow(Collector):
        def collect(self) -> Iterable[Metric]:
            running.release()
            may_end.wait(20)
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Slow())
    with metrics_server("127.0.0.1", 0, registry, lambda: "") as port:
        fetched: list[int] = []
        threads = [
            threading.Thread(target=lambda: fetched.append(fetch(port, "/metrics")[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for _ in range(ports.SCRAPES_AT_ONCE):
            assert await asyncio.to_thread(running.acquire, timeout=20)
        for _ in range(20):  # answered in threads that were started after those of the scrapes
            assert await asyncio.to_thread(fetch, port, LIVE_PATH) == (200, "")
        assert not running.acquire(blocking=False)
        may_end.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert fetched == [200] * 8


@pytest.mark.parametrize(
    "accept",
    ["text/plain;version=x;escaping=a;q=zz", "application/openmetrics-text;version=a.b;q=zz"],
)
async def test_an_accept_header_that_cannot_be_read_asks_for_nothing(accept: str) -> None:
    with metrics_server("127.0.0.1", 0, CollectorRegistry(), lambda: "") as port:
        url = f"http://127.0.0.1:{port}/metrics"
        asked = urllib.request.Request(url, headers={"Accept": accept})
        with await asyncio.to_thread(urllib.request.urlopen, asked, timeout=20) as reply:
            assert reply.status == 200


def test_a_port_that_is_taken_is_named_with_its_setting_and_a_free_one_stays_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, listen("127.0.0.1", 0, "") as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(PortError, match=rf"port {port} \(grpc_port\): .*choose another"):
            check_free("127.0.0.1", {"http_port": other, "grpc_port": port})
        check_free("127.0.0.1", {"http_port": other, "metrics_port": 0})
        listen("127.0.0.1", other, "http_port").close()


async def test_an_answer_in_two_parts_is_not_held_back() -> None:
    """The kernel would keep the second part until the caller has confirmed the first, for 40 ms."""
    delays: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        delays.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = listen("127.0.0.1", 0, "http_port")
    async with await asyncio.start_server(connected, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await delays
        writer.close()
