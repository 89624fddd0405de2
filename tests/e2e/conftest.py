"""One store and one server for every test that changes neither."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.tensor_values import RUNTIME_DATATYPES, echo_model
from tests.fixtures import onnx_models
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import running_split
from tests.fixtures.triton_client import TritonClient
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

SHAPES: dict[str, Any] = {
    "all-in-one": running_server,
    "several processes": running_processes,
    "split": running_split,
}
MAX_REQUEST_BYTES = 8 * 2**20
MAX_BATCH_SIZE = 8


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store that no test writes to.

    linear  versions 1 and 2, y = version * x, at most 8 rows; no pointer, so 2 is live
    pair    two inputs, two outputs
    labelled y = 2 * x, whose four classes have names
    lookup  with a latency set by the request, and failing for an index beyond 9
    echo    all datatypes at once; echo-fp32 and so on have one each
    family  an int8 artifact `onnx`, y = 2.00001 * x, and beside it `onnx-1` in fp32, y = 2 * x
    refused a version whose golden rows do not give its golden outputs
    """
    store = tmp_path_factory.mktemp("store")
    for scale in (1.0, 2.0):
        onnx_models.publish(
            str(store), "linear", onnx_models.linear(scale), max_batch_size=MAX_BATCH_SIZE
        )
    onnx_models.publish(str(store), "pair", onnx_models.pair())
    names = {"y": ("ant", "bee", "cat", "dog")}
    onnx_models.publish(str(store), "labelled", onnx_models.linear(2.0), labels=names)
    onnx_models.publish(str(store), "lookup", onnx_models.slow_lookup())
    onnx_models.publish(str(store), "echo", onnx_models.echo())
    for datatype in RUNTIME_DATATYPES:
        onnx_models.publish(str(store), echo_model(datatype), onnx_models.echo(datatype))
    family = (onnx_models.linear(2.00001), onnx_models.linear(2), onnx_models.linear(2, layers=1))
    onnx_models.publish(str(store), "family", *family, precisions=("int8",))
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    onnx_models.publish(str(store), "refused", onnx_models.linear(), golden_outputs=wrong)
    return store


@pytest.fixture(scope="session", params=SHAPES)
def server(request: pytest.FixtureRequest, store: Path) -> Iterator[ServerProcess]:
    """Runs a server of that store, in every shape, for every test that does not change it."""
    running = SHAPES[request.param]
    own = {"family": {"keep_artifacts": ["exact"]}}
    settings: dict[str, Any] = {"max_request_bytes": MAX_REQUEST_BYTES, "readiness": "any_model"}
    with running(store, model_settings=own, **settings) as server:
        server.wait_until_read_through()
        yield server


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    """Returns a protocol of `tritonclient`."""
    return str(request.param)


@pytest.fixture
def client(kind: str, server: ServerProcess) -> Iterator[TritonClient]:
    """Opens a `tritonclient` to the server of the module."""
    address = server.http if kind.startswith("http") else server.grpc
    with TritonClient(kind, address) as client:
        yield client


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    """Returns a shape of servers."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(shape: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder for a server of that shape, with an empty store."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "store").mkdir()
    return folder


@pytest.fixture(scope="session")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    """Opens a gRPC channel to it; messages of any size."""
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, unlimited) as channel:
        yield channel


@pytest.fixture(scope="session")
def stub(channel: grpc.Channel) -> GRPCInferenceServiceStub:
    """Returns the protocol's stub, as tritonclient generated it from its own .proto."""
    return GRPCInferenceServiceStub(channel)
