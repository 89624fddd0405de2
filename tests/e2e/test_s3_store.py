"""A server whose store is a bucket: served models, followed pointers, and refusals."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flambeau.server_process import server_process
from model_store.store import ModelStore
from tests.fixtures.http_listener import QuietHandler, http_listener
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
        for _ in range(10_000):  # each response is one poll; the switch comes within seconds
            if infer(server.http, "m") == [3, 6, 9, 12]:
                break
        else:
            pytest.fail("the moved pointer never took effect")


def test_credentials_come_from_the_service_account_of_a_pod(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials of EKS Pod Identity: from an agent on the node, by the pod's own token."""
    store, asked = f"{bucket}/identity", []
    publish(store, "m", linear(2))
    token = tmp_path / "token"
    token.write_text("of-the-service-account")
    found = {"AccessKeyId": "test", "SecretAccessKey": "test", "Token": "test"}

    class Agent(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["authorization"])
            body = json.dumps(found | {"Expiration": "2046-01-01T00:00:00Z"}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    with http_listener(Agent) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1/credentials")
        assert list(ModelStore(store).listing()) == ["m"]
    assert set(asked) == {"of-the-service-account"}
