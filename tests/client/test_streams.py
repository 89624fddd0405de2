"""Calls with many answers: what is yielded, errors in band and as status, retries, and readers."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flambeau.client import AsyncClient, Client
from flambeau.errors import (
    DeadlineError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ServerError,
)
from flambeau.protocol.messages import inference as pb
from tests.client.scripted_server import ScriptedServer, echo, echo_twice, fail

IMAGES = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


def failing_behind_one(code: str, words: str) -> Any:
    """A behaviour: one answer, and an error in band."""

    def behave(request: Any, context: Any) -> Iterator[Any]:
        yield pb.ModelStreamInferResponse(infer_response=echo(request, context))
        error = pb.ModelStreamInferResponse(error_message=words)
        if code:
            error.infer_response.parameters["grpc_status"].string_param = code
        yield error

    return behave


def test_answers_are_yielded(server: ScriptedServer, client: Client) -> None:
    found = list(client.stream("digits", {"image": IMAGES}, request_id="r", version="3"))
    assert [list(one) for one in found] == [["image"]] * 2
    np.testing.assert_array_equal(found[1]["image"], IMAGES)
    (received,) = server.received
    assert (received.request.id, received.request.model_version) == ("r", "3")
    assert received.time_remaining_s is not None


def test_model_checks_its_inputs(server: ScriptedServer, client: Client) -> None:
    digits = client.model("digits")
    first, second = digits.stream(IMAGES)
    np.testing.assert_array_equal(first, second)
    with pytest.raises(InvalidRequestError, match="shape"):
        digits.stream(IMAGES[:, :1])
    assert server.attempts("ModelStreamInfer") == 1


async def test_asyncio(server: ScriptedServer) -> None:
    async with AsyncClient(server.address) as client:
        digits = await client.model("digits")
        assert len([answer async for answer in digits.stream(IMAGES)]) == 2
        server.behaviours["ModelStreamInfer"] = failing_behind_one("NOT_FOUND", "gone")
        with pytest.raises(NotFoundError, match="gone"):
            _ = [answer async for answer in client.stream("digits", {"image": IMAGES})]


@pytest.mark.parametrize(
    ("code", "error"),
    [("INVALID_ARGUMENT", InvalidRequestError), ("INTERNAL", ServerError), ("", ServerError)],
)
def test_errors_in_band(
    server: ScriptedServer, client: Client, code: str, error: type[Exception]
) -> None:
    server.behaviours["ModelStreamInfer"] = failing_behind_one(code, "broken")
    answers = client.stream("digits", {"image": IMAGES})
    assert next(answers)
    with pytest.raises(error, match="broken"):
        next(answers)


def test_refusal_is_tried_again_before_the_first_answer(
    server: ScriptedServer, client: Client
) -> None:
    refuse = fail("RESOURCE_EXHAUSTED", "full", times=1, trailers=(("retry-after", "0"),))

    def behave(request: Any, context: Any) -> Iterator[Any]:
        refuse(request, context)
        yield from echo_twice(request, context)

    server.behaviours["ModelStreamInfer"] = behave
    assert len(list(client.stream("digits", {"image": IMAGES}))) == 2
    assert server.attempts("ModelStreamInfer") == 2


def test_refusal_behind_an_answer_is_raised(server: ScriptedServer, client: Client) -> None:
    refuse = fail("RESOURCE_EXHAUSTED", "full", trailers=(("retry-after", "0"),))

    def behave(request: Any, context: Any) -> Iterator[Any]:
        yield pb.ModelStreamInferResponse(infer_response=echo(request, context))
        refuse(request, context)

    server.behaviours["ModelStreamInfer"] = behave
    with pytest.raises(OverloadedError):
        list(client.stream("digits", {"image": IMAGES}))
    assert server.attempts("ModelStreamInfer") == 1


def test_deadline_is_of_the_whole_call(server: ScriptedServer, client: Client) -> None:
    def behave(request: Any, context: Any) -> Iterator[Any]:
        yield pb.ModelStreamInferResponse(infer_response=echo(request, context))
        server.released.wait(5)

    server.behaviours["ModelStreamInfer"] = behave
    answers = client.stream("digits", {"image": IMAGES}, timeout_s=0.3)
    assert next(answers)
    with pytest.raises(DeadlineError):
        next(answers)


def test_reader_that_stops_cancels_the_call(server: ScriptedServer, client: Client) -> None:
    ended = threading.Event()

    def behave(request: Any, context: Any) -> Iterator[Any]:
        context.add_callback(ended.set)
        while context.is_active():
            yield pb.ModelStreamInferResponse(infer_response=echo(request, context))

    server.behaviours["ModelStreamInfer"] = behave
    for _ in client.stream("digits", {"image": IMAGES}):
        break
    assert ended.wait(10)
