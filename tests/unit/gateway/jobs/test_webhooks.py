"""Webhook hosts with arbitrary responses."""

import asyncio
import base64
import hmac
import socket
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import InvalidRequestError
from services.gateway.jobs.job_service import check_webhook
from services.gateway.jobs.webhooks import Webhooks
from services.queueing.job_records import Job
from services.queueing.records import Lane
from services.queueing.redis_streams.webhook_queue import PAUSES_S, Delivery
from services.settings import ConfigError
from services.webhook_calls import MAKE, read_secret, signature


@contextmanager
def answering(data: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Runs a host that answers any request with these bytes; yields the starts of all requests."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                with caller:
                    heard.append(caller.recv(100_000))
                    caller.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/over", heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


Deliver = Callable[[bytes], Awaitable[tuple[int, list[bytes]]]]


@pytest.fixture
def deliver(caplog: pytest.LogCaptureFixture) -> Deliver:
    """Delivers a webhook to a host; returns the status that was logged, and the requests."""

    async def deliver(data: bytes) -> tuple[int, list[bytes]]:
        told, queue, jobs = asyncio.Event(), AsyncMock(), AsyncMock()
        last = Delivery("m.1", "s", b"1-0", len(PAUSES_S))
        queue.due.side_effect = [[last], *[[]] * 1000]
        queue.remove.side_effect = lambda _: told.set()
        with answering(data) as (url, heard), caplog.at_level("INFO", "flambeau.webhooks"):
            jobs.find.return_value = Job(
                id="m.1", lane=Lane("m", 1), state="done", created_at=0, deadline=0, webhook=url
            )
            webhooks = Webhooks(queue, jobs, tuple, b"k" * 24, ("127.0.0.1",))
            running = asyncio.create_task(webhooks.run())
            async with asyncio.timeout(20):
                await told.wait()
            running.cancel()
        (record,) = caplog.records
        return vars(record)["status"], heard

    return deliver


@pytest.mark.parametrize(
    "data",
    [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 " + b"x" * 70_000, b"HTTP/1.1 many OK\r\n\r\n",
     b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"],
)  # fmt: skip
async def test_an_answer_that_is_none_is_not_heard(deliver: Deliver, data: bytes) -> None:
    assert (await deliver(data))[0] == 1


@pytest.mark.parametrize("status", [200, 204, 404, 500])
async def test_the_status_is_what_counts(deliver: Deliver, status: int) -> None:
    data = b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status
    assert (await deliver(data))[0] == status


async def test_no_redirect_is_followed(deliver: Deliver) -> None:
    data = b"HTTP/1.1 302 x\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
    status, heard = await deliver(data)
    assert status == 302
    assert len(heard) == 1


@pytest.mark.parametrize("host", ["example.org", "hooks.example.org", "HOOKS.Example.Org"])
def test_hosts_are_named_in_any_case(host: str) -> None:
    check_webhook(f"https://{host}:8443/path?q", ("Example.org", ".Example.org"))


@pytest.mark.parametrize(
    "url",
    ["https://example.org.evil/", "https://evil/example.org", "https://user@example.org/",
     "https://a..example.org/", f"https://{'a' * 64}.example.org/", "https://example.org:65536/",
     "https://example.org/" + "x" * 2048],
)  # fmt: skip
def test_what_may_not_be_called_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="webhook"):
        check_webhook(url, ("example.org", ".example.org"))


def by_library(secret: str | bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Returns the signature that a receiver expects, as libraries of Standard Webhooks make it.

    They take bytes as the key, and read a text as base64, after `whsec_` if it has it:
    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
    """
    key = secret
    if isinstance(secret, str):
        key = base64.b64decode(secret.removeprefix("whsec_"))
    assert isinstance(key, bytes)
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()


@given(st.binary(min_size=24, max_size=64), st.integers(0, 2**40), st.binary(max_size=64))
def test_a_receiver_that_has_the_text_of_the_secret_accepts_the_signature(
    key: bytes, timestamp: int, body: bytes
) -> None:
    with tempfile.NamedTemporaryFile("w") as file:
        text = f"whsec_{base64.b64encode(key).decode()}"
        file.write(f"{text}\n")
        file.flush()
        secret = read_secret(file.name)
    assert signature(secret, "1", timestamp, body) == by_library(text, "1", timestamp, body)


def test_a_secret_by_the_command_of_the_documentation_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hook.secret"
    file.write_bytes(subprocess.run(["bash", "-c", MAKE], check=True, capture_output=True).stdout)
    assert len(read_secret(str(file))) == 32
    assert caplog.messages == []


@pytest.mark.parametrize("secret", [b"\xff" * 32, base64.b64encode(b"\xff" * 32)])
def test_any_other_secret_signs_by_its_bytes_and_is_told_once(
    tmp_path: Path, secret: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_bytes(secret)
    found = read_secret(str(tmp_path / "secret"))
    assert signature(found, "1", 7, b"{}") == by_library(secret, "1", 7, b"{}")
    [told] = caplog.messages
    assert "the webhook secret has no whsec_, so its bytes sign as they are" in told
    assert secret.decode(errors="replace") not in told


@pytest.mark.parametrize(("text", "says"), [("whsec_%", "no base64"), ("short", "holds 5 bytes")])
def test_a_secret_that_cannot_be_used_is_told_the_command(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(ConfigError, match=f"{says}.*make one by echo"):
        read_secret(str(tmp_path / "secret"))


@pytest.mark.parametrize(("file", "says"), [("", "set webhook_secret_file"), ("/none", "No such")])
def test_a_secret_that_is_not_there_is_named(file: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_secret(file)
