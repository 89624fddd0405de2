"""A server whose store is a bucket: what it serves, what it follows, and what it refuses there."""

import json
import urllib.request
from collections.abc import Iterator

import pytest

from flambeau.server_process import server_process
from model_store.store import ModelStore
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.s3_server import s3_server

BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as url:
        yield url


def infer(address: str, model: str) -> list[float]:
    url = f"http://{address}/v2/models/{model}/infer"
    with urllib.request.urlopen(url, BODY) as reply:
        data: list[float] = json.load(reply)["outputs"][0]["data"]
        return data


def test_a_bucket_is_served_and_its_pointers_followed(bucket: str) -> None:
    store = f"{bucket}/follow"
    publish(store, "m", linear(2))
    publish(store, "m", linear(3))
    ModelStore(store).promote("m", 1)
    with server_process(["--store", store]) as server:
        assert infer(server.http, "m") == [2, 4, 6, 8]
        ModelStore(store).promote("m", 2)
        for _ in range(10_000):  # each answer is one look; the switch comes within seconds
            if infer(server.http, "m") == [3, 6, 9, 12]:
                break
        else:
            pytest.fail("the moved pointer never took effect")
