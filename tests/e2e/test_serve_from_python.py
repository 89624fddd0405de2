"""Serving and loading from Python, and a file served at once."""

import json
import os
import select
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import flambeau
from flambeau.errors import InvalidRequestError
from flambeau.local.server import ServerError
from flambeau.server_process import server_process
from model_store.golden import GoldenRows
from model_store.store import ModelStore
from tests.fixtures import onnx_models, python_models

PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
ROWS = np.ones((3, 4), np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two versions of y = version * x, of which the first is in production."""
    folder = tmp_path_factory.mktemp("store")
    for scale in (1.0, 2.0):
        onnx_models.publish(str(folder), "linear", onnx_models.linear(scale), max_batch_size=8)
    onnx_models.publish(str(folder), "other", onnx_models.linear(5.0), max_batch_size=8)
    ModelStore(str(folder)).promote("linear", 1, "production", "test")
    return folder


def test_a_server_from_python_answers_over_both_protocols(store: Path) -> None:
    with flambeau.serve("linear", store=store, block=False, **PORTS) as server:
        with server.client() as client:
            found = client.model("linear")(x=ROWS)
        with urllib.request.urlopen(f"{server.url}/v2/models/linear/ready") as reply:
            assert reply.status == 200
        pid = server.pid

    np.testing.assert_array_equal(found, ROWS)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="threds"):
        flambeau.serve(store=tmp_path, block=False, **PORTS, threds=2)


@pytest.mark.parametrize(
    ("address", "version", "factor"),
    [("linear", "1", 1), ("linear@production", "1", 1), ("linear@2", "2", 2), ("other", "1", 5)],
)
def test_a_version_is_loaded_by_its_address(
    store: Path, address: str, version: str, factor: int
) -> None:
    with flambeau.load(address, store=store) as model:
        assert model.version == version
        np.testing.assert_array_equal(
            model(x=np.ones((20, 4), np.float32)), np.full((20, 4), factor)
        )


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("liner", "did you mean 'linear'"),
        ("linear@stage", "has no alias 'stage'"),
        ("linear@9", "9"),
    ],
)
def test_a_version_that_is_not_there_is_refused_in_words(
    store: Path, address: str, words: str
) -> None:
    with pytest.raises(ServerError, match=words):
        flambeau.load(address, store=store)


def test_values_are_taken_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    source = "class Model:\n def infer(self, inputs): return {'y': inputs['z'] - inputs['a']}"
    signature = python_models.signature_of(
        [("z", "FP32", (-1, 4)), ("a", "FP32", (-1, 4))], [("y", "FP32", (-1, 4))]
    )
    golden = GoldenRows({"z": 3 * ROWS, "a": ROWS}, {"y": 2 * ROWS})
    python_models.publish(str(tmp_path), "two", source, signature, golden)
    with flambeau.load("two", store=tmp_path) as two:
        np.testing.assert_array_equal(two(5 * ROWS, ROWS), 4 * ROWS)
        np.testing.assert_array_equal(two(5 * ROWS, a=ROWS), 4 * ROWS)
        np.testing.assert_array_equal(two({"a": ROWS, "z": ROWS}), 0 * ROWS)
        for values, words in (
            ((ROWS, ROWS, ROWS), "3 values were given, and the model has 2 inputs: z, a"),
            ((ROWS,), "'a'"),
        ):
            with pytest.raises(InvalidRequestError, match=words):
                two(*values)
        with pytest.raises(InvalidRequestError, match="'z' was given by its place and by its name"):
            two(ROWS, z=ROWS)


def test_a_process_ends_with_the_program_that_started_it(store: Path, tmp_path: Path) -> None:
    """Even if that is killed: nothing may hold its ports and memory."""
    program = (
        "import sys, time, flambeau\n"
        "model = flambeau.load('linear', store=sys.argv[1])\n"
        "print(model.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(store)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    descriptor = os.pidfd_open(pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert select.select([descriptor], [], [], 30)[0], "the loaded version still runs"
    os.close(descriptor)


def test_a_file_is_served_at_once(tmp_path: Path) -> None:
    path = tmp_path / "my net.onnx"
    path.write_bytes(onnx_models.linear(3.0))

    with server_process([str(path)]) as server:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
        request = urllib.request.Request(
            f"http://{server.http}/v2/models/my-net/infer", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request) as reply:
            found = json.loads(reply.read())

    assert found["outputs"][0]["data"] == [3.0] * 4
