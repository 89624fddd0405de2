"""Overloaded servers: a refusal is retried when the server says so, and within the deadline."""

import time

import numpy as np
import pytest

from flambeau.client import AsyncClient, Client
from flambeau.errors import OverloadedError, UnavailableError
from tests.client.scripted_server import ScriptedServer, Trailers, fail

IMAGES = {"image": np.zeros((1, 2, 3), np.float32)}
SOON: Trailers = (("retry-after", "1"), ("grpc-retry-pushback-ms", "10"))
FULL = "the queue holds 512 requests"


def test_a_refused_request_is_sent_again(server: ScriptedServer, client: Client) -> None:
    later = (("grpc-retry-pushback-ms", "200"),)
    server.behaviours["ModelInfer"] = fail("RESOURCE_EXHAUSTED", FULL, times=2, trailers=later)
    assert "image" in client.infer("digits", IMAGES, timeout_s=5)
    first, second, third = (each.time_remaining_s or 0 for each in server.received)
    assert first - second > 0.1, "attempts share one deadline"
    assert second - third > 0.1


async def test_a_refused_request_is_sent_again_by_the_async_client(server: ScriptedServer) -> None:
    server.behaviours["ModelInfer"] = fail("RESOURCE_EXHAUSTED", FULL, times=2, trailers=SOON)
    async with AsyncClient(server.address, timeout_s=10) as client:
        assert "image" in await client.infer("digits", IMAGES)
    assert server.attempts() == 3


def test_retries_have_a_limit(server: ScriptedServer) -> None:
    server.behaviours["ModelInfer"] = fail("RESOURCE_EXHAUSTED", FULL, trailers=SOON)
    for retries in (0, 2):
        server.received.clear()
        with (
            Client(server.address, timeout_s=10, retries=retries) as client,
            pytest.raises(OverloadedError, match=FULL) as caught,
        ):
            client.infer("digits", IMAGES)
        assert server.attempts() == retries + 1
        assert caught.value.retry_after_s == 0.01


def test_without_retries_unavailable_is_final(server: ScriptedServer) -> None:
    server.behaviours["ModelInfer"] = fail("UNAVAILABLE", "draining")
    with Client(server.address, retries=0) as client, pytest.raises(UnavailableError):
        client.infer("digits", IMAGES)
    assert server.attempts() == 1


@pytest.mark.parametrize(
    "trailers", [(), (("grpc-retry-pushback-ms", "-1"),), (("retry-after", "soon"),)]
)
def test_a_refusal_without_a_delay_is_final(
    server: ScriptedServer, client: Client, trailers: Trailers
) -> None:
    server.behaviours["ModelInfer"] = fail("RESOURCE_EXHAUSTED", FULL, trailers=trailers)
    with pytest.raises(OverloadedError) as caught:
        client.infer("digits", IMAGES)
    assert server.attempts() == 1
    assert caught.value.retry_after_s is None


def test_a_wait_beyond_the_deadline_is_not_begun(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = fail(
        "RESOURCE_EXHAUSTED", FULL, trailers=(("retry-after", "60"),)
    )
    began = time.monotonic()
    with pytest.raises(OverloadedError, match=FULL) as caught:
        client.infer("digits", IMAGES, timeout_s=30)
    assert time.monotonic() - began < 10
    assert caught.value.retry_after_s == 60
    assert server.attempts() == 1


def test_numbers_of_retries_are_checked() -> None:
    with pytest.raises(ValueError, match="retries is 21; give 0 to 20"):
        Client("127.0.0.1:1", retries=21)
