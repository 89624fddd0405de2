"""Sequences over REST and gRPC, from tritonclient: in one process, in several, and over Redis."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flambeau
from flambeau import Client
from flambeau.protocol.tensors import Array
from model_store.store import ModelStore
from tests.e2e.conftest import SHAPES
from tests.e2e.rest_calls import call
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import RedisProcess, redis_process, until_true
from tests.fixtures.servers import ServerProcess, processes, running_server
from tests.fixtures.split_servers import running_gateway, running_worker
from tests.fixtures.stateful_models import publish_running_sum, x
from tests.fixtures.triton_client import TritonClient, TritonError

MOST = 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store of running sums, and of `linear`, which has no state."""
    store = tmp_path_factory.mktemp("store")
    publish_running_sum(str(store))
    publish_running_sum(str(store), "direct", strategy="direct")
    publish_running_sum(str(store), "named", id=None)
    publish_running_sum(str(store), "few", max_sequences=MOST, max_idle_s=2)
    publish(str(store), "linear", linear(2))
    return store


@pytest.fixture(scope="module", params=SHAPES)
def server(request: pytest.FixtureRequest, store: Path) -> Iterator[ServerProcess]:
    with SHAPES[request.param](store) as server:
        server.wait_until_read_through()
        yield server


def step(
    client: TritonClient,
    name: int | str,
    value: float,
    control: str = "",
    model: str = "sum",
    **further: Array,
) -> float:
    """Sends a step to a running sum; returns the sum."""
    answer = client.infer(
        model,
        x(value) | further,
        sequence_id=name,
        sequence_start="start" in control,
        sequence_end="end" in control,
    )
    return float(answer.outputs["sum"][0, 0])


@pytest.mark.parametrize("model", ["sum", "direct"])
def test_sequence_has_its_own_state(client: TritonClient, model: str) -> None:
    name, other = 2**62 + 1, 7
    assert step(client, name, 1, "start", model=model) == 101
    assert step(client, other, 50, "start", model=model) == 150
    assert step(client, name, 2, model=model) == 103
    assert step(client, other, 5, "end", model=model) == 155
    assert step(client, name, 3, "end", model=model) == 106
    with pytest.raises(TritonError, match=rf"sequence '{name}' of model '{model}'.*start it again"):
        step(client, name, 4, model=model)


def test_id_may_be_text_unless_the_model_takes_numbers(client: TritonClient) -> None:
    who = {"who": np.array([[0]], np.uint64)}
    assert step(client, "camera-ä", 1, "start", model="named", **who) == 101
    assert step(client, "camera-ä", 1, "end", model="named", **who) == 102
    with pytest.raises(TritonError, match="takes numbers up to 18446744073709551615 as ids"):
        step(client, "camera-ä", 1, "start")


def test_controls_arrive(client: TritonClient) -> None:
    told = []
    for control in ("start", "", "end"):
        answer = client.infer(
            "sum", x(1), sequence_id=9, sequence_start=control == "start",
            sequence_end=control == "end",
        )  # fmt: skip
        assert sorted(answer.outputs) == ["sum", "told"]
        told.append(answer.outputs["told"][0].tolist())
    assert told == [[1, 0, 9], [0, 0, 9], [0, 1, 9]]


def test_wrong_steps_are_refused_in_words(client: TritonClient, server: ServerProcess) -> None:
    with pytest.raises(TritonError, match="give a sequence_id that is neither 0 nor empty"):
        client.infer("sum", x(1))
    with pytest.raises(TritonError, match=r"is not open here: it was not started|has no worker"):
        step(client, 12345, 1)
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor], "parameters": {"sequence_start": True}}).encode()
    reply = call(server, "POST", "/v2/models/sum/infer", body)
    assert reply.status == 400
    assert "give the 'sequence_id' too" in reply.error()


def test_steps_to_a_model_without_state_are_requests(client: TritonClient) -> None:
    given = {"x": x(3)["x"].repeat(4, 1)}
    answer = client.infer("linear", given, sequence_id=5)
    assert answer.outputs["y"].tolist() == [[6] * 4]


def test_metadata_shows_what_callers_send(server: ServerProcess) -> None:
    with Client(server.grpc) as client:
        signature = client.model("sum").signature
    assert [spec.name for spec in signature.inputs] == ["x"]
    assert [spec.name for spec in signature.outputs] == ["sum", "told"]
    assert signature.sequence is not None
    assert signature.sequence.strategy == "oldest"
    told = call(server, "GET", "/v2/models/sum").json()["properties"]["sequence"]
    assert json.loads(told).keys() == {"strategy", "max_idle_s", "max_lifetime_s", "max_sequences"}


def test_open_sequences_and_their_ends_are_metrics(
    client: TritonClient, server: ServerProcess
) -> None:
    of_model = {"model": "direct", "version": "1"}
    opened = server.metric("flambeau_open_sequences", **of_model)
    ended = server.metric("flambeau_ended_sequences_total", reason="ended", **of_model)
    step(client, 3, 1, "start", model="direct")
    server.wait_for_metric(opened + 1, "flambeau_open_sequences", **of_model)
    step(client, 3, 1, "end", model="direct")
    server.wait_for_metric(opened, "flambeau_open_sequences", **of_model)
    server.wait_for_metric(ended + 1, "flambeau_ended_sequences_total", reason="ended", **of_model)


def test_many_sequences_at_once(server: ServerProcess) -> None:
    wrong: list[object] = []

    def drive(first: int) -> None:
        try:
            with TritonClient("grpc", server.grpc) as client:
                names = range(first, first + 10)
                for number in range(5):
                    for name in names:
                        control = {0: "start", 4: "end"}.get(number, "")
                        found = step(client, 1000 + name, name, control)
                        if found != 100 + name * (number + 1):
                            wrong.append((name, number, found))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=drive, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sequences_that_never_end_are_limited_and_make_room(client: TritonClient) -> None:
    for name in range(1, MOST + 1):
        step(client, name, 1, "start", model="few")
    with pytest.raises(TritonError, match=rf"{MOST} sequences of model 'few' .* are open"):
        step(client, 1000, 1, "start", model="few")

    def has_room() -> bool:
        try:
            return step(client, 5000, 1, "start end", model="few") == 101
        except TritonError:
            return False

    until_true(has_room, every_s=0.2)


def test_death_of_the_model_process_is_an_error_with_the_name(store: Path) -> None:
    with (
        running_server(store, "--processes=2") as server,
        TritonClient("grpc", server.grpc) as client,
    ):
        assert step(client, 1, 1, "start") == 101
        (model,) = processes(server, "model")
        os.kill(model, signal.SIGKILL)

        until_true(lambda: "sequence '1' of model 'sum'" in str(outcome(client, 1)))
        assert step(client, 1, 5, "start") == 105


@pytest.fixture
def redis() -> Iterator[RedisProcess]:
    with redis_process() as redis:
        yield redis


def test_death_of_a_worker_is_an_error_with_the_name(store: Path, redis: RedisProcess) -> None:
    names = range(1, 21)
    with (
        running_worker(store, redis.url),
        running_worker(store, redis.url) as dying,
        running_gateway(redis.url) as gateway,
        TritonClient("grpc", gateway.grpc) as client,
    ):
        for name in names:
            assert step(client, name, name, "start") == 100 + name
        dying.expected_code = -signal.SIGKILL
        dying.process.kill()
        found = {name: outcome(client, name) for name in names}
        lost = [name for name, one in found.items() if isinstance(one, str)]
        assert 0 < len(lost) < len(names)
        assert all(f"sequence '{name}' of model 'sum'" in str(found[name]) for name in lost)
        assert all(found[name] == 101 + name for name in names if name not in lost)
        for name in lost:
            assert step(client, name, 5, "start") == 105


def outcome(client: TritonClient, name: int) -> float | str:
    """Returns the sum after a step, or the error."""
    try:
        return step(client, name, 1)
    except TritonError as error:
        return error.message


class Summing(nn.Module):
    """A running sum."""

    def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Returns twice the sum with `x`, [rows, 1], and the sum."""
        after = total + x
        return after * 2, after


@pytest.mark.long
@pytest.mark.parametrize("kind", ["torchscript", "openvino", "pt2"])
def test_any_kind_of_artifact_may_have_states(tmp_path: Path, kind: str) -> None:
    rows = torch.arange(8.0).reshape(8, 1)
    flambeau.publish(
        Summing(), {"x": rows, "total": rows}, name="sum", to=tmp_path, artifacts=[kind],
        outputs=["sum", "after"], progress=False,
        sequence={"states": {"total": {"output": "after", "initial": 100}}},
    )  # fmt: skip
    with running_server(tmp_path) as server, TritonClient("grpc", server.grpc) as client:
        for name in (1, 2):
            assert step(client, name, name, "start") == 2 * (100 + name)
        for name in (1, 2):
            assert step(client, name, 10, "end") == 2 * (110 + name)


def test_swap_and_drain_end_sequences_by_name(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for _ in range(2):
        publish_running_sum(store.url)
    store.promote("sum", 1)
    with (
        running_server(tmp_path, newest_versions=0) as server,
        TritonClient("grpc", server.grpc) as client,
    ):
        assert step(client, 1, 1, "start") == 101
        store.promote("sum", 2)
        until_true(lambda: "sequence '1' of model 'sum' version 2" in str(outcome(client, 1)))
        assert step(client, 1, 5, "start") == 105
        server.ask_to_stop()
        until_true(lambda: isinstance(outcome(client, 1), str))
