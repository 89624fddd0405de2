"""The asynchronous client: the same calls and errors, and many of them at once."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from flambeau.client import AsyncClient
from flambeau.errors import DeadlineError, InvalidRequestError, ServerError, UnavailableError
from tests.client.scripted_server import ScriptedServer, echo, fail

IMAGES = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.fixture
async def async_client(server: ScriptedServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, timeout_s=10) as client:
        yield client


async def test_many_calls_at_once_get_their_own_answers(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    together = threading.Barrier(8, timeout=10)

    def echo_once_eight_are_here(request: Any, context: Any) -> Any:
        together.wait()
        return echo(request, context)

    server.behaviours["ModelInfer"] = echo_once_eight_are_here
    digits = await async_client.model("digits")
    answers = await asyncio.gather(*(digits(image=IMAGES + number) for number in range(200)))

    for number, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, IMAGES + number)


async def test_questions_have_answers(async_client: AsyncClient) -> None:
    assert await async_client.is_live()
    assert await async_client.is_ready()
    assert await async_client.is_ready("digits")
    assert not await async_client.is_ready("letters")
    assert (await async_client.metadata("digits")).versions == ("1",)


async def test_infer_gives_outputs_by_name(async_client: AsyncClient) -> None:
    outputs = await async_client.infer(
        "digits", {"image": IMAGES, "more": IMAGES}, outputs=["more"]
    )
    assert list(outputs) == ["more"]


async def test_what_does_not_fit_is_never_sent(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    digits = await async_client.model("digits")
    with pytest.raises(InvalidRequestError, match="unknown input 'imgae'"):
        await digits(imgae=IMAGES)
    assert server.attempts() == 0


async def test_unavailable_is_retried_and_internal_is_not(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    server.behaviours["ModelInfer"] = fail("UNAVAILABLE", "draining", times=1)
    await async_client.infer("digits", {"image": IMAGES})
    assert server.attempts() == 2

    server.behaviours["ModelInfer"] = fail("INTERNAL", "the model raised")
    with pytest.raises(ServerError, match=r"^the model raised$"):
        await async_client.infer("digits", {"image": IMAGES})
    assert server.attempts() == 3


async def test_a_late_answer_is_a_deadline_error(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    server.behaviours["ModelInfer"] = server.hang
    with pytest.raises(DeadlineError, match=r"no answer within 0\.1 s"):
        await async_client.infer("digits", {"image": IMAGES}, timeout_s=0.1)


async def test_a_cancelled_task_cancels_the_call_on_the_server(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    arrived, cancelled = threading.Event(), threading.Event()

    def hang_until_cancelled(request: Any, context: Any) -> Any:
        context.add_callback(cancelled.set)
        arrived.set()
        return server.hang(request, context)

    server.behaviours["ModelInfer"] = hang_until_cancelled
    task = asyncio.create_task(async_client.infer("digits", {"image": IMAGES}))
    assert await asyncio.to_thread(arrived.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(cancelled.wait, 10)


async def test_nobody_there() -> None:
    with ScriptedServer() as server:
        address = server.address
    async with AsyncClient(address) as client:
        assert not await client.is_ready()
        with pytest.raises(UnavailableError, match="failed to connect"):
            await client.infer("digits", {"image": IMAGES})
