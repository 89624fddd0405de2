"""tritonclient, unchanged: HTTP and gRPC, each synchronous and asyncio, do the same things."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.e2e.rest_calls import call, infer_path
from tests.e2e.tensor_values import RUNTIME_DATATYPES, VALUES, assert_same_bits, echo_model
from tests.fixtures.servers import ServerProcess

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


class SyncAsAsync:
    """A synchronous client behind the asyncio one's face, so that one test does for both."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._client, name)(*args, **kwargs)

        return call


@contextlib.asynccontextmanager
async def client_of(kind: str, server: ServerProcess) -> AsyncIterator[Any]:
    match kind:
        case "http":
            with tritonclient.http.InferenceServerClient(server.http) as client:
                yield SyncAsAsync(client)
        case "grpc":
            with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
                yield SyncAsAsync(client)
        case "http.aio":
            async with tritonclient.http.aio.InferenceServerClient(server.http) as client:
                yield client
        case "grpc.aio":
            async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
                yield client


KINDS = ("http", "http.aio", "grpc", "grpc.aio")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(kind: str, server: ServerProcess) -> AsyncIterator[Any]:
    async with client_of(kind, server) as client:
        yield client


def given(kind: str, name: str, array: Any, **how: Any) -> Any:
    module = tritonclient.http if kind.startswith("http") else tritonclient.grpc
    tensor = module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, **how)
    return tensor


def wanted(kind: str, name: str, **how: Any) -> Any:
    module = tritonclient.http if kind.startswith("http") else tritonclient.grpc
    return module.InferRequestedOutput(name, **how)


async def test_health(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("linear")
    assert await client.is_model_ready("linear", "1")
    assert not await client.is_model_ready("linear", "3")
    assert not await client.is_model_ready("refused")
    assert not await client.is_model_ready("nowhere")


async def test_metadata(client: Any, kind: str) -> None:
    as_dict = {"as_json": True} if kind.startswith("grpc") else {}
    server = await client.get_server_metadata(**as_dict)
    assert server["name"] == "flambeau"
    model = await client.get_model_metadata("linear", "1", **as_dict)
    assert (model["name"], model["versions"]) == ("linear", ["1", "2"])
    for tensor in (model["inputs"][0], model["outputs"][0]):
        assert tensor["datatype"] == "FP32"
        assert [int(dimension) for dimension in tensor["shape"]] == [-1, 4]


@pytest.mark.parametrize(("version", "scale"), [("", 2), ("1", 1), ("2", 2)])
async def test_infer(client: Any, kind: str, version: str, scale: int) -> None:
    result = await client.infer("linear", [given(kind, "x", X)], version, request_id="mine-9")
    assert_same_bits(result.as_numpy("y"), scale * X)
    response = result.get_response()
    field = response.get if isinstance(response, dict) else response.__getattribute__
    assert field("id") == "mine-9"
    assert field("model_version") == str(scale)


@pytest.mark.parametrize("datatype", RUNTIME_DATATYPES)
async def test_datatype(client: Any, kind: str, datatype: str) -> None:
    inputs = [given(kind, f"in_{datatype}", VALUES[datatype])]
    result = await client.infer(echo_model(datatype), inputs)
    assert_same_bits(result.as_numpy(f"out_{datatype}"), VALUES[datatype])


async def test_outputs_wanted(client: Any, kind: str) -> None:
    inputs = [given(kind, "a", X), given(kind, "b", X)]
    result = await client.infer("pair", inputs, outputs=[wanted(kind, "difference")])
    assert_same_bits(result.as_numpy("difference"), np.zeros_like(X))
    assert result.as_numpy("total") is None


@pytest.mark.parametrize("kind", ["http", "http.aio"], indirect=True)
@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary_input", [True, False])
async def test_binary_and_json(
    client: Any, kind: str, binary_input: bool, binary_output: bool
) -> None:
    inputs = [given(kind, "a", X, binary_data=binary_input), given(kind, "b", X)]
    outputs = [wanted(kind, "total", binary_data=binary_output), wanted(kind, "difference")]
    result = await client.infer("pair", inputs, outputs=outputs)
    assert_same_bits(result.as_numpy("total"), 2 * X)
    assert_same_bits(result.as_numpy("difference"), np.zeros_like(X))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compression(client: Any, kind: str, algorithm: str) -> None:
    large = np.ones((1, 5000), np.float32)
    how = (
        {"compression_algorithm": algorithm}
        if kind.startswith("grpc")
        else {
            "request_compression_algorithm": algorithm,
            "response_compression_algorithm": algorithm,
        }
    )
    result = await client.infer("echo-fp32", [given(kind, "in_FP32", large)], **how)
    assert_same_bits(result.as_numpy("out_FP32"), large)


@pytest.mark.parametrize(
    ("model", "name", "status", "message"),
    [
        ("nowhere", "x", ("404", "StatusCode.NOT_FOUND"), "model 'nowhere' is not served"),
        ("linear", "z", ("400", "StatusCode.INVALID_ARGUMENT"), "unknown input 'z'"),
        ("refused", "x", ("503", "StatusCode.UNAVAILABLE"), "golden"),
    ],
)
async def test_error(
    client: Any, kind: str, model: str, name: str, status: tuple[str, str], message: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        await client.infer(model, [given(kind, name, X)])
    assert message in caught.value.message()
    assert caught.value.status() == status[kind.startswith("grpc")]


async def test_classification_is_refused_and_not_ignored(client: Any, kind: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        await client.infer(
            "linear", [given(kind, "x", X)], outputs=[wanted(kind, "y", class_count=2)]
        )
    assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


@pytest.mark.parametrize("kind", ["grpc", "grpc.aio"], indirect=True)
async def test_client_timeout(client: Any, kind: str) -> None:
    inputs = [given(kind, "work", np.array([100_000])), given(kind, "index", np.array([1]))]
    with pytest.raises(InferenceServerException) as caught:
        await client.infer("lookup", inputs, client_timeout=0.2)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


@pytest.fixture
def concurrent_http(server: ServerProcess) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(server.http, concurrency=8) as client:
        yield client


def test_async_infer_of_the_http_client(concurrent_http: Any) -> None:
    pending = [
        concurrent_http.async_infer("linear", [given("http", "x", X + number)])
        for number in range(32)
    ]
    for number, request in enumerate(pending):
        assert_same_bits(request.get_result().as_numpy("y"), 2 * (X + number))


def test_raw_body_of_the_http_client(server: ServerProcess) -> None:
    """Its own encoder and decoder, over somebody else's HTTP library."""
    client = tritonclient.http.InferenceServerClient
    body, length = client.generate_request_body([given("http", "x", X)])
    headers = {"inference-header-content-length": str(length)}
    reply = call(server, "POST", infer_path("linear"), body, headers)
    position = int(reply.headers["inference-header-content-length"])
    result = client.parse_response_body(reply.body, header_length=position)
    assert_same_bits(result.as_numpy("y"), 2 * X)
