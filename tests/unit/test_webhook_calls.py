"""Calls of webhooks at hosts that send slowly, or never."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from services import webhook_calls
from services.webhook_calls import NO_RESPONSE, WebhookCalls

TIMEOUT_S = 30
CALLS = """
import asyncio, sys
from services.webhook_calls import WebhookCalls

async def main():
    call = asyncio.create_task(WebhookCalls(b"k" * 24).post(sys.argv[1], "id", b"{}"))
    await asyncio.sleep(0)
    sys.stdin.readline()  # the host has the request
    call.cancel()

asyncio.run(main())
"""


class Host:
    """A host that sends a response byte by byte, and never ends it."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._closed = threading.Event()
        self.begun = threading.Semaphore(0)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}/hook"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._drip, args=(caller,)))
                self._threads[-1].start()

    def _drip(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            caller.recv(100_000)
            self.begun.release()
            caller.sendall(self._start)
            while not self._closed.wait(0.02):
                caller.sendall(b"x")

    def close(self) -> None:
        self._closed.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()


HEADER = b"HTTP/1.1 200 OK\r\nslow: "
TLS_RECORD = b"\x16\x03\x03\x40\x00"
"""Start of a record of 16 KiB."""


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(getattr(request, "param", HEADER))
    yield host
    host.close()


@pytest.mark.parametrize(
    ("host", "scheme"), [(HEADER, "http"), (TLS_RECORD, "https")], indirect=["host"]
)
async def test_a_call_ends_at_its_deadline_though_the_host_sends_on(
    host: Host, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_calls, "DEADLINE_S", 0.3)
    async with asyncio.timeout(TIMEOUT_S):
        status = await WebhookCalls(b"k" * 24).post(f"{scheme}://{host.address}", "id", b"{}")
    assert status == NO_RESPONSE


async def test_a_process_ends_during_a_call(host: Host) -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", CALLS, f"http://{host.address}"], stdin=subprocess.PIPE
    ) as process:
        try:
            assert await asyncio.to_thread(host.begun.acquire, True, TIMEOUT_S)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.wait, webhook_calls.DEADLINE_S / 2) == 0
        finally:
            process.kill()


async def test_one_url_takes_few_turns_and_others_go_on() -> None:
    calls = WebhookCalls(b"k" * 24)
    async with contextlib.AsyncExitStack() as turns:
        for _ in range(webhook_calls.AT_ONCE_PER_URL):
            await turns.enter_async_context(calls.turn("http://slow/"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), calls.turn("http://slow/"):
                pass
        async with calls.turn("http://other/"):
            pass
    async with calls.turn("http://slow/"):
        pass
