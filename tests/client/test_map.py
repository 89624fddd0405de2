"""Rows through `map`: order, batches, how far it reads ahead, failures, and the bar."""

import asyncio
import itertools
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from flambeau.calling.row_batches import BATCH_BYTES
from flambeau.client import AsyncClient, Client
from flambeau.errors import InvalidRequestError, OverloadedError, ServerError
from flambeau.protocol.messages import inference as pb
from tests.client.scripted_server import ScriptedServer, echo, fail, metadata

NUMBERS = [("x", "INT64", [-1])]


@pytest.fixture(autouse=True)
def numbers(server: ScriptedServer) -> None:
    """The model takes and returns numbers, at most 8 in a batch."""
    server.digits = metadata(NUMBERS, NUMBERS, max_batch_size="8")


def sizes(server: ScriptedServer) -> list[int]:
    """Returns the batch sizes of the requests."""
    requests = [each.request for each in server.received if each.method == "ModelInfer"]
    return [request.inputs[0].shape[0] for request in requests]


def refuse_seventeen(code: str) -> Any:
    def behave(request: Any, context: Any) -> Any:
        if 17 in np.frombuffer(request.raw_input_contents[0], np.int64):
            fail(code, "17 is odd")(request, context)
        return echo(request, context)

    return behave


def test_rows_come_back_in_order_in_full_batches(server: ScriptedServer, client: Client) -> None:
    model = client.model("digits")
    assert list(model.map(range(100))) == list(range(100))
    assert sorted(sizes(server), reverse=True) == [8] * 12 + [4]
    assert list(model.map([])) == []
    assert [int(x) for x in model.map(np.arange(3), batch_size=1)] == [0, 1, 2]


def test_a_slow_batch_keeps_its_place(server: ScriptedServer, client: Client) -> None:
    second_answered = threading.Event()

    def first_last(request: Any, context: Any) -> Any:
        if request.raw_input_contents[0][0] == 0:
            assert second_answered.wait(10)
        else:
            second_answered.set()
        return echo(request, context)

    server.behaviours["ModelInfer"] = first_last
    model = client.model("digits")
    assert list(model.map(range(6), batch_size=1, in_flight=2)) == list(range(6))


def test_an_endless_iterable_is_read_as_far_as_is_in_flight(client: Client) -> None:
    read = itertools.count()
    answers = client.model("digits").map(read, batch_size=4, in_flight=3)
    assert [next(answers) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert next(read) <= 4 + 3 * 4
    answers.close()  # type: ignore[attr-defined]


def test_no_more_than_in_flight_are_sent(server: ScriptedServer, client: Client) -> None:
    three_are_here, inside = threading.Barrier(3, timeout=10), threading.Semaphore(3)

    def together(request: Any, context: Any) -> Any:
        assert inside.acquire(blocking=False)
        three_are_here.wait()
        inside.release()
        return echo(request, context)

    server.behaviours["ModelInfer"] = together
    model = client.model("digits")
    assert list(model.map(range(9), batch_size=1, in_flight=3)) == list(range(9))


@pytest.mark.parametrize(
    ("code", "error"), [("INVALID_ARGUMENT", InvalidRequestError), ("INTERNAL", ServerError)]
)
def test_one_row_that_fails_is_named_behind_those_before_it(
    server: ScriptedServer, client: Client, code: str, error: type[Exception]
) -> None:
    server.behaviours["ModelInfer"] = refuse_seventeen(code)
    answers = client.model("digits").map(range(100))
    done: list[int] = []
    with pytest.raises(error, match=r"^row 17: 17 is odd$"):
        done.extend(answers)
    assert done == list(range(17))


def test_a_value_that_does_not_fit_is_named_behind_those_before_it(client: Client) -> None:
    done: list[int] = []
    with pytest.raises(InvalidRequestError, match=r"^row 10: model 'digits': .*'ten' is no INT64"):
        done.extend(client.model("digits").map([*range(10), "ten"]))
    assert done == list(range(10))


def test_an_error_of_the_iterable_comes_behind_its_rows(client: Client) -> None:
    def rows() -> Iterator[int]:
        yield from range(10)
        raise OSError("the disk is gone")

    done: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        done.extend(client.model("digits").map(rows()))
    assert done == list(range(10))


def test_a_refusal_of_a_batch_names_its_rows(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = fail("RESOURCE_EXHAUSTED", "full")
    with pytest.raises(OverloadedError, match=r"^rows 0 to 7: full$"):
        next(client.model("digits").map(range(100)))
    assert max(sizes(server)) == 8, "no row is to blame"


def test_rows_of_several_shapes_are_not_joined(server: ScriptedServer, client: Client) -> None:
    server.digits = metadata([("x", "INT64", [-1, -1])], [("x", "INT64", [-1, -1])])
    rows = [[1], [2], [3, 4], [5, 6], [7]]
    assert [row.tolist() for row in client.model("digits").map(rows)] == rows
    assert sorted(sizes(server)) == [1, 2, 2]


def test_a_batch_has_a_limit_of_bytes(server: ScriptedServer, client: Client) -> None:
    server.digits = metadata([("x", "BYTES", [-1])], [("x", "BYTES", [-1])])
    rows = [b"x" * (BATCH_BYTES * 2 // 5)] * 3
    assert list(client.model("digits").map(rows)) == rows
    assert sorted(sizes(server)) == [1, 2]


def test_several_inputs_and_outputs_go_by_name(server: ScriptedServer, client: Client) -> None:
    tensors = [("a", "INT64", [-1]), ("b", "BYTES", [-1, 1])]
    server.digits = metadata(tensors, tensors)
    rows = [{"a": number, "b": str(number)} for number in range(3)]
    answers = list(client.model("digits").map(rows))
    assert [int(each["a"]) for each in answers] == [0, 1, 2]
    assert [each["b"].tolist() for each in answers] == [[b"0"], [b"1"], [b"2"]]


def test_options_go_with_each_batch(server: ScriptedServer, client: Client) -> None:
    list(client.model("digits").map(range(9), accuracy="exact", timeout_s=5, outputs=["x"]))
    for received in server.received[1:]:
        assert received.request.parameters["accuracy"].string_param == "exact"
        assert [output.name for output in received.request.outputs] == ["x"]
        assert received.time_remaining_s is not None
        assert received.time_remaining_s <= 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 9}, "batch_size is 9; give 1 to 8"),
        ({"batch_size": 0}, "batch_size is 0; give 1 to 8"),
        ({"in_flight": 0}, "in_flight is 0; give 1 to 64"),
        ({"in_flight": 65}, "in_flight is 65; give 1 to 64"),
    ],
)
def test_settings_have_limits(client: Client, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        client.model("digits").map([1], **options)


def test_an_item_is_one_row(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="row 1: it holds 2 rows; give one row at a time"):
        list(client.model("digits").map([[1], [2, 3]]))


def test_an_answer_with_other_rows_is_an_error(server: ScriptedServer, client: Client) -> None:
    def one_row(request: Any, context: Any) -> Any:
        reply = pb.ModelInferResponse(raw_output_contents=[b"\0" * 8])
        reply.outputs.add(name="x", datatype="INT64", shape=[1])
        return reply

    server.behaviours["ModelInfer"] = one_row
    with pytest.raises(ServerError, match=r"rows 0 to 1: output 'x' .* \[1\]; expected 2 rows"):
        list(client.model("digits").map(range(2)))


def test_a_bar_is_shown_only_if_it_is_wanted(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    model = client.model("digits")
    list(model.map(range(9)))
    list(model.map(range(9), progress=False))
    assert capfd.readouterr() == ("", "")
    list(model.map(range(9), progress=True))
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "digits" in shown.err
    assert "9/9" in shown.err


def test_a_terminal_shows_a_bar(server: ScriptedServer) -> None:
    primary, secondary = pty.openpty()
    program = (
        "import sys; from flambeau import Client\n"
        "with Client(sys.argv[1]) as client: list(client.model('digits').map(range(9)))"
    )
    with subprocess.Popen([sys.executable, "-c", program, server.address], stderr=secondary) as run:
        assert run.wait(60) == 0
    os.close(secondary)
    assert b"9/9" in os.read(primary, 65_536)
    os.close(primary)


@pytest.fixture
async def async_client(server: ScriptedServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, timeout_s=10) as client:
        yield client


async def some(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def test_the_async_client_maps_both_kinds_of_iterables(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    model = await async_client.model("digits")
    assert [int(row) async for row in model.map(range(100))] == list(range(100))
    assert [int(row) async for row in model.map(some(20))] == list(range(20))
    assert sorted(sizes(server)) == [4, 4] + [8] * 14


async def collect(answers: AsyncIterator[Any], done: list[int]) -> None:
    async for row in answers:
        done.append(int(row))  # also those before an error


async def test_the_async_client_names_the_row_that_fails(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    server.behaviours["ModelInfer"] = refuse_seventeen("INTERNAL")
    model = await async_client.model("digits")
    for rows in (range(100), some(100)):
        done: list[int] = []
        with pytest.raises(ServerError, match=r"^row 17: 17 is odd$"):
            await collect(model.map(rows), done)
        assert done == list(range(17))
    with pytest.raises(ValueError, match="in_flight is 0"):
        model.map([], in_flight=0)


async def test_closing_an_async_map_cancels_its_calls(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def hang_after_the_first(request: Any, context: Any) -> Any:
        if request.raw_input_contents[0][0] == 0:
            return echo(request, context)
        context.add_callback(cancelled.set)
        begun.set()
        return server.hang(request, context)

    server.behaviours["ModelInfer"] = hang_after_the_first
    model = await async_client.model("digits")
    answers = model.map(itertools.count(), batch_size=1, in_flight=2)
    assert await anext(answers) == 0
    assert await asyncio.to_thread(begun.wait, 10)
    await answers.aclose()
    assert await asyncio.to_thread(cancelled.wait, 10)


async def test_the_async_model_classifies(
    server: ScriptedServer, async_client: AsyncClient
) -> None:
    tensors = [("x", "FP32", [-1, 2])]
    server.digits = metadata(tensors, tensors, labels='{"x": ["cat", "dog"]}')
    model = await async_client.model("digits")
    ((found,),) = await model.classify([0.0, 800.0])
    assert found == ("dog", 1.0)
