"""Scalars, other batch axes, models without a batch, texts out and optional inputs, as served."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau import Client
from flambeau.errors import InvalidRequestError
from flambeau.protocol.tensors import Array, datatype_of
from tests.e2e.held_workers import held_worker
from tests.e2e.rest_calls import Reply, call, infer, tensor
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.shaped_models import MODELS, publish_all, runner
from tests.fixtures.split_servers import running_split
from tests.fixtures.triton_client import TritonClient


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store of every model of `MODELS`."""
    folder = tmp_path_factory.mktemp("store")
    publish_all(str(folder))
    return folder


@pytest.fixture(scope="module", params=["isolated", "in the process", "split"])
def server(store: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Runs all models; isolated ones, each in a process that a test can hold."""
    if request.param == "split":
        with running_split(store) as split:
            yield split
    else:
        with running_server(store, isolate=request.param == "isolated", access_log=True) as one:
            yield one


def sound(rows: int, length: int, rate: int) -> dict[str, Array]:
    """Returns inputs of `stateful`."""
    return {
        "sound": np.arange(rows * length, dtype=np.float32).reshape(rows, length),
        "state": np.arange(rows * 6, dtype=np.float32).reshape(2, rows, 3),
        "rate": np.array(rate),
    }


ASKED: dict[str, tuple[str, dict[str, Array]]] = {
    "a scalar": (
        "scaled", {"x": np.ones((3, 4), np.float32), "factor": np.array(2.5, np.float32)},
    ),
    "no batch": (
        "whole",
        {"matrix": np.ones((5, 3), np.float32), "scale": np.array(2, np.float32)},
    ),
    "nothing in it": (
        "whole",
        {"matrix": np.ones((0, 3), np.float32), "scale": np.array(2, np.float32)},
    ),
    "one row and its state": ("stateful", sound(1, 7, 8000)),
    "rows and their states": ("stateful", sound(4, 5, 16000)),
    "texts": (
        "shouting", {"text": np.array([[b"a", "é".encode()], [b"", b"x"]], np.object_)},
    ),
    "without the optional input": ("biased", {"x": np.ones((2, 3), np.float32)}),
    "with the optional input": (
        "biased",
        {"x": np.ones((2, 3), np.float32), "bias": np.array([5, 6, 7], np.float32)},
    ),
}  # fmt: skip


def as_json(name: str, array: Array) -> dict[str, Any]:
    """Returns an input in JSON."""
    data = [one.decode() if isinstance(one, bytes) else one for one in array.ravel().tolist()]
    return tensor(name, datatype_of(array), array.shape, data)


def assert_same(found: dict[str, Array], right: dict[str, Array]) -> None:
    assert found.keys() == right.keys()
    for name, array in right.items():
        values = [one.encode() if isinstance(one, str) else one for one in array.ravel().tolist()]
        assert (name, found[name].shape) == (name, array.shape)
        assert found[name].ravel().tolist() == values


@pytest.mark.parametrize("what", ASKED)
def test_every_shape_is_answered_over_rest(server: ServerProcess, what: str) -> None:
    model, inputs = ASKED[what]
    right = runner(MODELS[model][1]())(inputs)
    reply = infer(server, model, *(as_json(*item) for item in inputs.items()))
    assert reply.status == 200, reply.body
    for output in reply.json()["outputs"]:
        array = right[output["name"]]
        assert output["shape"] == list(array.shape)
        assert output["data"] == array.ravel().tolist()
    assert len(reply.json()["outputs"]) == len(right)


@pytest.mark.parametrize("what", ASKED)
def test_every_shape_is_answered_over_grpc(server: ServerProcess, what: str) -> None:
    model, inputs = ASKED[what]
    with Client(server.grpc) as client:
        found = client.model(model).infer(inputs)
    assert_same(found, runner(MODELS[model][1]())(inputs))


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_third_partys_client_sends_scalars_and_reads_texts(
    server: ServerProcess, kind: str
) -> None:
    address = server.http if kind == "http" else server.grpc
    with TritonClient(kind, address) as client:
        for what in ("rows and their states", "texts"):
            model, inputs = ASKED[what]
            found = client.infer(model, inputs, request_id=what).outputs
            assert_same(found, runner(MODELS[model][1]())(inputs))


@pytest.mark.parametrize("model", MODELS)
def test_metadata_gives_the_signature_back(server: ServerProcess, model: str) -> None:
    with Client(server.grpc) as client:
        assert client.model(model).signature == MODELS[model][0]
    shapes = {
        one["name"]: one["shape"]
        for one in call(server, "GET", f"/v2/models/{model}").json()["inputs"]
    }
    assert shapes == {one.name: list(one.shape) for one in MODELS[model][0].inputs}


def test_a_raw_body_is_one_request_of_a_model_without_a_batch(server: ServerProcess) -> None:
    refused = call(
        server,
        "POST",
        "/v2/models/whole/infer",
        b"\0" * 24,
        {"inference-header-content-length": "0"},
    )
    assert (refused.status, "exactly one input" in refused.error()) == (400, True)


REFUSED: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "a vector for a scalar": (
        "scaled",
        [tensor("x", "FP32", [1, 4], [0.0] * 4), tensor("factor", "FP32", [1], [1.0])],
        "input 'factor' has shape [1]; expected []",
    ),
    "no value for a scalar": (
        "scaled",
        [tensor("x", "FP32", [1, 4], [0.0] * 4), tensor("factor", "FP32", [], [])],
        "0 elements",
    ),
    "another size of the state": (
        "stateful",
        [
            tensor("sound", "FP32", [2, 1], [0.0] * 2),
            tensor("state", "FP32", [2, 3, 3], [0.0] * 18),
            tensor("rate", "INT64", [], [1]),
        ],
        "inputs differ in batch size: {'sound': 2, 'state': 3}",
    ),
    "too many rows along another axis": (
        "stateful",
        [
            tensor("sound", "FP32", [17, 1], [0.0] * 17),
            tensor("state", "FP32", [2, 17, 3], [0.0] * 102),
            tensor("rate", "INT64", [], [1]),
        ],
        "the batch has 17 rows; at most 16 fit",
    ),
    "a required input left out": (
        "biased", [tensor("bias", "FP32", [3], [0.0] * 3)], "input 'x' is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_other_shapes_are_refused_in_words(server: ServerProcess, what: str) -> None:
    model, inputs, message = REFUSED[what]
    reply = infer(server, model, *inputs)
    assert (reply.status, message in reply.error()) == (400, True), reply.body


def test_sizes_that_do_not_fit_each_other_are_the_callers_fault(server: ServerProcess) -> None:
    """The signature cannot say which sizes go together: the runtime's error does."""

    def ask(left: int, right: int) -> Reply:
        sizes = {"left": left, "right": right}
        return infer(
            server, "paired", *(tensor(n, "FP32", [1, s], [1] * s) for n, s in sizes.items())
        )

    with ThreadPoolExecutor(3) as threads:
        good, bad, fine = threads.map(ask, (5, 5, 6), (5, 6, 6))
    assert (good.status, fine.status) == (200, 200)
    assert bad.status == 400
    assert bad.error().startswith(
        "model 'paired' version 1 does not accept this combination of sizes, "
        "'left' [1,5], 'right' [1,6]: "
    )
    assert "5 by 6" in bad.error()
    with Client(server.grpc) as client, pytest.raises(InvalidRequestError, match="combination"):
        client.infer(
            "paired", {n: np.ones((1, s), np.float32) for n, s in (("left", 5), ("right", 7))}
        )


def test_bytes_that_are_no_text_are_the_callers_fault(server: ServerProcess) -> None:
    with Client(server.grpc) as client, pytest.raises(InvalidRequestError, match="not UTF-8"):
        client.infer("shouting", {"text": np.array([[b"\xff"]], np.object_)})


def test_a_client_adds_a_missing_batch_along_its_axis(server: ServerProcess) -> None:
    with Client(server.grpc) as client:
        stateful, whole = client.model("stateful"), client.model("whole")
        found = stateful(sound=[1.0, 2.0], state=np.zeros((2, 3), np.float32), rate=3)
        assert found["level"].tolist() == [[9.0]]
        assert found["next"].shape == (2, 1, 3)
        assert whole(matrix=[[1.0, 2.0, 3.0]], scale=2.0)["total"] == 12
        with pytest.raises(InvalidRequestError, match="call it once for each request"):
            list(stateful.map([{}]))


@pytest.mark.parametrize("server", ["isolated"], indirect=True)
def test_requests_share_a_batch_only_with_the_same_scalar(server: ServerProcess) -> None:
    def ask(factor: float, id: str) -> Any:
        x = tensor("x", "FP32", [1, 4], [1.0] * 4)
        return infer(server, "scaled", x, tensor("factor", "FP32", [], [factor]), id=id)

    factors = (2.0, 3.0, 2.0, 3.0)
    held = [tensor("x", "FP32", [1, 4], [1.0] * 4), tensor("factor", "FP32", [], [9.0])]
    with ThreadPoolExecutor(len(factors)) as threads:
        with held_worker(server, "scaled", *held):
            replies = [threads.submit(ask, f, f"scalar {i}") for i, f in enumerate(factors)]
            server.wait_for_metric(len(factors), "flambeau_queue_depth", model="scaled")
        for factor, reply in zip(factors, replies, strict=True):
            assert reply.result().outputs() == {"y": [factor] * 4, "twice": [2 * factor]}
    for number, factor in enumerate(factors):
        log = server.wait_for_log(message="request", request_id=f"scalar {number}")
        assert log["batch_rows"] == factors.count(factor)


@pytest.mark.parametrize("server", ["isolated"], indirect=True)
def test_states_along_another_axis_share_a_batch(server: ServerProcess) -> None:
    """The first two, of one row each: the machine's speed decides on batches of more rows."""
    rows = (1, 1, 2, 3)
    asked = [sound(count, 4, 8000) for count in rows]
    for number, inputs in enumerate(asked):
        inputs["state"] = inputs["state"] + 100 * number

    def ask(number: int) -> dict[str, Array]:
        with Client(server.grpc) as client:
            return client.infer("stateful", asked[number], request_id=f"state {number}")

    held = [as_json(*item) for item in sound(1, 4, 1).items()]
    run = runner(MODELS["stateful"][1]())
    with ThreadPoolExecutor(len(asked)) as threads:
        with held_worker(server, "stateful", *held):
            found = []
            for number in range(len(asked)):  # in this order
                found.append(threads.submit(ask, number))
                server.wait_for_metric(len(found), "flambeau_queue_depth", model="stateful")
        for inputs, one in zip(asked, found, strict=True):
            assert_same(one.result(), run(inputs))
    logs = [server.wait_for_log(message="request", request_id=f"state {n}") for n in range(2)]
    first, second = (log["batch_rows"] for log in logs)
    assert first == second > 1
