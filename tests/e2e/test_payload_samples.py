"""Payload samples of a running server, single-process and split, over every form of a request."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from model_store.samples.payload_sample import PayloadSample
from model_store.samples.payload_samples import read_samples
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from tests.e2e.conftest import SHAPES
from tests.e2e.grpc_calls import linear_request, lookup_request
from tests.e2e.rest_calls import call, infer, infer_path, linear_input, lookup_inputs, tensor
from tests.fixtures import onnx_models
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import running_split
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = [1.0, 2.0, 3.0, 4.0]
BINARY_ROW = (
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]'
    b',"parameters":{"binary_data_output":true}}'
)
RULES = {
    "linear": {"share": 1, "max_per_minute": 60_000},
    "pa*": {"share": 1, "redact": ["b", "difference"]},
    "lookup": {"share": 1},
}
Running = Callable[[], AbstractContextManager[ServerProcess]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for model, onnx in (
        ("linear", onnx_models.linear(2)),
        ("pair", onnx_models.pair()),
        ("lookup", onnx_models.lookup()),
        ("quiet", onnx_models.linear(2)),
    ):
        onnx_models.publish(str(tmp_path), model, onnx)
    return tmp_path


@pytest.fixture(params=SHAPES)
def running(request: pytest.FixtureRequest, store: Path) -> Iterator[Running]:
    if request.param != "split":
        yield partial(SHAPES[request.param], store, payload_samples=RULES)
    else:
        own: dict[str, Any] = {"payload_samples": RULES, "payload_sample_store": str(store)}
        yield partial(running_split, store, **own)


def ask(server: ServerProcess) -> None:
    """Sends each form of a request, with an id each, and requests that must not be sampled."""
    for name, model in (("json", "linear"), ("quiet", "quiet")):
        reply = infer(server, model, linear_input(ROW), headers={"x-request-id": name})
        assert reply.outputs() == {"y": [2, 4, 6, 8]}
    head = {
        "inference-header-content-length": str(len(BINARY_ROW)), "x-request-id": "binary",
    }  # fmt: skip
    body = BINARY_ROW + np.array(ROW, "<f4").tobytes()
    assert call(server, "POST", infer_path("linear"), body, head).status == 200
    a, b = (tensor(name, "FP32", [1, 2], [5, 6]) for name in "ab")
    assert infer(server, "pair", a, b, id="redacted").status == 200
    failed = infer(server, "lookup", lookup_inputs(99)[1], headers={"x-request-id": "failed"})
    assert failed.status == 500
    assert infer(server, "linear", linear_input(ROW), outputs=[{"name": "z"}]).status == 400
    assert infer(server, "linears", linear_input(ROW)).status == 404
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        stub.ModelInfer(linear_request(ROW, id="grpc"), timeout=30)
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(lookup_request(99, id="bad"), timeout=30)


def values(tensors: Any) -> dict[str, list[float] | None]:
    arrays = {one.name: one.array() for one in tensors}
    return {name: x if x is None else x.ravel().tolist() for name, x in arrays.items()}


def test_requests_are_kept_as_asked_and_answered(running: Running, store: Path) -> None:
    with running() as server:
        ask(server)
    samples: dict[str, PayloadSample] = {
        one.request_id: one
        for model in ("linear", "pair", "lookup", "quiet", "linears")
        for one in read_samples(Storage(str(store)), model)
    }
    assert set(samples) == {"json", "binary", "redacted", "failed", "grpc"}
    for name in ("json", "binary", "grpc"):
        found = samples[name]
        assert (found.model, found.version, found.artifact) == ("linear", 1, "onnx")
        assert (values(found.inputs), values(found.outputs)) == (
            {"x": ROW}, {"y": [2, 4, 6, 8]}
        )  # fmt: skip
        assert 0 < found.duration_ms < 60_000
    assert [samples[name].status for name in ("json", "grpc", "failed")] == ["200", "OK", "500"]
    assert (samples["failed"].error, samples["failed"].outputs) == ("BackendError", ())
    redacted = samples["redacted"]
    assert values(redacted.inputs) == {"a": [5, 6], "b": None}
    assert values(redacted.outputs) == {"total": [10, 12], "difference": None}
    assert ModelStore(str(store)).versions("linear") == [1]
