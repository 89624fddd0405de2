"""Requests that choose an artifact, in both shapes: REST, and third-party clients."""

import numpy as np
import pytest

from flambeau.client import Client
from flambeau.errors import NotFoundError
from tests.e2e.rest_calls import Reply, call, infer, linear_input
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_client import TritonClient

ROW = [1.0, 2.0, 3.0, 4.0]
EXACT = {"y": [2.0, 4.0, 6.0, 8.0]}
"""Output of `onnx-1`, which differs from that of `onnx`, the default artifact."""


def ask(server: ServerProcess, **preference: str) -> Reply:
    """Sends one row over REST."""
    return infer(server, "family", linear_input(ROW), parameters=preference)


def test_what_is_kept_is_told(server: ServerProcess) -> None:
    found = call(server, "GET", "/v2/models/family").json()["properties"]
    assert (found["artifact"], found["artifacts"]) == ("onnx", "onnx, onnx-1")


@pytest.mark.parametrize("preference", [{"accuracy": "exact"}, {"artifact": "onnx-1"}])
def test_a_caller_gets_the_artifact_it_asks_for(
    server: ServerProcess, preference: dict[str, str]
) -> None:
    reply = ask(server, **preference)
    assert reply.outputs() == EXACT
    assert reply.json()["parameters"] == {"artifact": "onnx-1"}


def test_a_caller_that_asks_for_none_gets_the_default_one(server: ServerProcess) -> None:
    reply = infer(server, "family", linear_input(ROW))
    assert reply.outputs()["y"] == pytest.approx(EXACT["y"], rel=1e-4)
    assert reply.outputs() != EXACT
    assert "parameters" not in reply.json()
    named = ask(server, artifact="onnx")
    assert named.outputs() == reply.outputs()
    assert named.json()["parameters"] == {"artifact": "onnx"}


@pytest.mark.parametrize(
    ("preference", "status", "reason"),
    [
        ({"artifact": "onnx-2"}, 404, "not loaded; loaded: onnx (int8), onnx-1 (fp32)"),
        ({"accuracy": "best"}, 400, "must be one of exact, balanced, fast"),
        ({"accuracy": "exact", "artifact": "onnx"}, 400, "both given"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused(
    server: ServerProcess, preference: dict[str, str], status: int, reason: str
) -> None:
    reply = ask(server, **preference)
    assert reply.status == status
    assert reason in reply.error()


def test_tritonclient_asks_over_http_and_grpc(server: ServerProcess) -> None:
    x = {"x": np.array([ROW], np.float32)}
    with TritonClient("http", server.http) as client:
        over_http = client.infer("family", x, parameters={"accuracy": "exact"})
    with TritonClient("grpc", server.grpc) as client:
        over_grpc = client.infer("family", x, parameters={"artifact": "onnx-1"})
    for found in (over_http, over_grpc):
        assert found.outputs["y"].tolist() == [EXACT["y"]]
        assert found.parameters == {"artifact": "onnx-1"}


def test_the_client_of_flambeau_asks_too(server: ServerProcess) -> None:
    with Client(server.grpc) as client:
        family = client.model("family")
        assert family.infer(ROW, artifact="onnx-1")["y"].tolist() == [EXACT["y"]]
        assert family.infer(ROW, accuracy="exact")["y"].tolist() == [EXACT["y"]]
        assert family(ROW).tolist() != [EXACT["y"]]
        assert [row.tolist() for row in family.map([ROW] * 20, accuracy="exact")] == [
            EXACT["y"]
        ] * 20
        with pytest.raises(NotFoundError, match="not loaded; loaded: onnx"):
            family.infer(ROW, artifact="onnx-2")
