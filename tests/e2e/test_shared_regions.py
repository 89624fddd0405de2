"""Tensors through shared memory, by tritonclient and by requests that it would not send."""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from openapi_spec_validator import validate

from tests.e2e.conftest import SHAPES
from tests.e2e.rest_calls import call
from tests.fixtures.client_environment import client_python
from tests.fixtures.servers import ROOT, ServerProcess
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

PROGRAM = ROOT / "tests/fixtures/triton_regions.py"
X = np.arange(8, dtype=np.float32).reshape(2, 4)
SHARED = Path("/dev/shm")
REGISTER, STATUS = "/v2/systemsharedmemory/region/{}/register", "/v2/systemsharedmemory/status"


@pytest.fixture(scope="module")
def prefix() -> str:
    return f"flambeau-test-{uuid.uuid4().hex}"


@pytest.fixture(scope="module", params=SHAPES)
def enabled(request: pytest.FixtureRequest, store: Path, prefix: str) -> Iterator[ServerProcess]:
    """Runs a server, in every shape, whose clients may use objects of the prefix."""
    settings: Any = {"shared_memory_objects": f"{prefix}*", "readiness": "any_model"}
    with SHAPES[request.param](store, **settings) as server:
        server.wait_until_read_through()
        yield server


@pytest.fixture
def key(prefix: str) -> Iterator[str]:
    """Makes an object of 1 KiB with `X` at its beginning; returns its key."""
    name = f"{prefix}-{uuid.uuid4().hex}"
    file = SHARED / name
    file.write_bytes(X.tobytes() + bytes(1024 - X.nbytes))
    yield f"/{name}"
    file.unlink(missing_ok=True)


def registered(server: ServerProcess, key: str, **more: object) -> str:
    """Registers a region of 1 KiB; returns its name."""
    name = uuid.uuid4().hex
    body = json.dumps({"key": key, "offset": 0, "byte_size": 1024, **more}).encode()
    reply = call(server, "POST", REGISTER.format(name), body)
    assert reply.status == 200, reply.body
    return name


def infer(server: ServerProcess, region: str, outputs: Any = (), **more: object) -> Any:
    """Sends `linear` an input in a region; returns the response."""
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": X.nbytes, **more}
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": parameters}
    body = {"inputs": [tensor], "outputs": list(outputs)}
    return call(server, "POST", "/v2/models/linear/infer", json.dumps(body).encode())


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient_sends_and_receives_through_regions(
    enabled: ServerProcess, prefix: str, kind: str
) -> None:
    address = enabled.http if kind == "http" else enabled.grpc
    command = [client_python(), str(PROGRAM), kind, address, f"{prefix}-{kind}", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["outputs"] == [(2 * X).tolist()] * 12
    assert told["streamed"] == ([(2 * X).tolist()] * 4 if kind == "grpc" else [])
    assert "system_shared_memory" in told["extensions"]
    assert told["status"] == [
        {"name": "found", "key": f"/{prefix}-{kind}-found", "offset": 0, "byte_size": 48},
        {"name": "given", "key": f"/{prefix}-{kind}-given", "offset": 0, "byte_size": 32},
    ]
    codes = [
        ("409", "StatusCode.ALREADY_EXISTS"), ("400", "StatusCode.INVALID_ARGUMENT"),
        ("404", "StatusCode.NOT_FOUND"), ("501", "StatusCode.UNIMPLEMENTED"),
    ]  # fmt: skip
    exists, invalid, missing, unsupported = (pair[kind == "grpc"] for pair in codes)
    assert told["twice"] == [exists, told["twice"][1]]
    assert told["other"] == [invalid, told["other"][1]]
    assert "does not match" in told["other"][1]
    assert told["vanished"] == [invalid, told["vanished"][1]]
    assert "No such file" in told["vanished"][1]
    assert told["unknown"] == [missing, told["unknown"][1]]
    assert told["cuda"] == [unsupported, told["cuda"][1]]
    assert told["left"] == 0


def test_a_region_that_shrinks_is_refused_and_the_server_lives(
    enabled: ServerProcess, key: str
) -> None:
    region = registered(enabled, key)
    assert infer(enabled, region).json()["outputs"][0]["data"] == (2 * X).ravel().tolist()
    os.truncate(f"/dev/shm{key}", 8)
    reply = infer(enabled, region)
    assert reply.status == 400
    assert "has 8 bytes, and 32 are needed" in reply.json()["error"]
    wanted = {"shared_memory_region": region, "shared_memory_byte_size": 32}
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.ravel().tolist()}
    body = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": wanted}]}
    reply = call(enabled, "POST", "/v2/models/linear/infer", json.dumps(body).encode())
    assert reply.status == 400
    assert Path(f"/dev/shm{key}").stat().st_size == 8
    assert call(enabled, "GET", "/v2/health/live").status == 200


def test_outputs_of_binary_and_in_regions_side_by_side(enabled: ServerProcess, key: str) -> None:
    region = registered(enabled, key)
    place = {"shared_memory_region": region, "shared_memory_byte_size": 32}
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [2, 4], "parameters": place}
        for name in ("a", "b")
    ]  # fmt: skip
    outputs = [
        {"name": "difference", "parameters": {"binary_data": True}},
        {"name": "total", "parameters": {**place, "shared_memory_offset": 512}},
    ]
    body = json.dumps({"id": "7", "inputs": inputs, "outputs": outputs}).encode()
    reply = call(enabled, "POST", "/v2/models/pair/infer", body)
    assert reply.status == 200, reply.body
    length = int(reply.headers["inference-header-content-length"])
    difference, total = json.loads(reply.body[:length])["outputs"]
    assert difference["parameters"] == {"binary_data_size": 32}
    assert reply.body[length:] == bytes(32)
    assert total["parameters"] == {
        "shared_memory_region": region, "shared_memory_offset": 512, "shared_memory_byte_size": 32,
    }  # fmt: skip
    assert "data" not in total
    found = Path(f"/dev/shm{key}").read_bytes()[512:544]
    assert found == (2 * X).tobytes()


def test_classes_of_an_output_are_in_a_region(enabled: ServerProcess, key: str) -> None:
    region = registered(enabled, key)
    place = {"shared_memory_region": region, "shared_memory_byte_size": 256}
    wanted = {**place, "shared_memory_offset": 256, "classification": 1}
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.ravel().tolist()}
    body = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": wanted}]}
    reply = call(enabled, "POST", "/v2/models/labelled/infer", json.dumps(body).encode())
    assert reply.status == 200, reply.body
    (output,) = reply.json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 1])
    texts = [b"6.000000:3:dog", b"14.000000:3:dog"]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    assert output["parameters"]["shared_memory_byte_size"] == len(raw)
    assert Path(f"/dev/shm{key}").read_bytes()[256 : 256 + len(raw)] == raw


def set_place(tensor: Any, region: str, offset: int = 0) -> None:
    """Puts a tensor of gRPC into a region."""
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_offset"].int64_param = offset
    tensor.parameters["shared_memory_byte_size"].int64_param = X.nbytes


def of_region(name: str, region: str) -> Any:
    """Returns an input of gRPC in a region."""
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=[2, 4])
    set_place(tensor, region)
    return tensor


def test_a_stream_of_requests_in_regions(enabled: ServerProcess, key: str) -> None:
    region = registered(enabled, key)
    requests = []
    for number in range(1, 9):
        request = pb.ModelInferRequest(model_name="linear", id=str(number))
        request.inputs.append(of_region("x", region if number != 5 else "nothing"))
        set_place(request.outputs.add(name="y"), region, 64 * number)
        requests.append(request)
    with grpc.insecure_channel(enabled.grpc) as channel:
        found = list(GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests)))
    assert [one.infer_response.id for one in found] == [str(number) for number in range(1, 9)]
    assert [number for number, one in enumerate(found, 1) if one.error_message] == [5]
    held = Path(f"/dev/shm{key}").read_bytes()
    written = [held[64 * number : 64 * number + 32] for number in range(1, 9)]
    assert written == [(2 * X).tobytes() if number != 5 else bytes(32) for number in range(1, 9)]


def test_raw_typed_and_region_inputs_of_one_grpc_request(enabled: ServerProcess, key: str) -> None:
    region = registered(enabled, key)
    other = pb.ModelInferRequest.InferInputTensor(name="b", datatype="FP32", shape=[2, 4])
    with grpc.insecure_channel(enabled.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        request = pb.ModelInferRequest(model_name="pair", id="7")
        request.inputs.extend([of_region("a", region), other])
        request.raw_input_contents.append((3 * X).tobytes())
        found = stub.ModelInfer(request)
        assert found.id == "7"
        assert found.raw_output_contents[0] == (4 * X).tobytes()
        del request.raw_input_contents[:]
        request.inputs[1].contents.fp32_contents.extend((3 * X).ravel().tolist())
        found = stub.ModelInfer(request)
        assert list(found.outputs[0].contents.fp32_contents) == (4 * X).ravel().tolist()
        set_place(request.outputs.add(name="total"), region, 64)
        request.outputs.add(name="difference")
        found = stub.ModelInfer(request)
        assert list(found.raw_output_contents) == [b"", (X - 3 * X).tobytes()]
        assert found.outputs[0].parameters["shared_memory_byte_size"].int64_param == 32
        assert Path(f"/dev/shm{key}").read_bytes()[64:96] == (4 * X).tobytes()
        request.raw_input_contents.extend([b"", b""])
        with pytest.raises(grpc.RpcError, match="2 entries for 1 inputs outside of shared memory"):
            stub.ModelInfer(request)


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"shared_memory_byte_size": 31}, 400, "takes 32"),
        ({"shared_memory_offset": 1000}, 400, "are no part of the shared memory region"),
        ({"shared_memory_offset": 2**62}, 400, "are no part of the shared memory region"),
        ({"shared_memory_offset": "0"}, 400, "whole number"),
        ({"binary_data_size": 32}, 400, "send one"),
        ({"shared_memory_region": "nothing"}, 404, "Unable to find system"),
        ({"shared_memory_region": ""}, 400, "without a name"),
    ],
)
def test_what_is_wrong_with_a_region_is_said(
    enabled: ServerProcess, key: str, more: dict[str, Any], status: int, words: str
) -> None:
    reply = infer(enabled, registered(enabled, key), **more)
    assert (reply.status, list(reply.json())) == (status, ["error"])
    assert words in reply.json()["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"key":1}', b'{"key":"/x"}', b'{"key":"/x","byte_size":-1}',
     b'{"key":"/x","byte_size":1.5}', b'{"key":"/x","byte_size":18446744073709551616}', b"{" * 999],
)  # fmt: skip
def test_a_registration_that_is_none(enabled: ServerProcess, body: bytes) -> None:
    reply = call(enabled, "POST", REGISTER.format("x"), body)
    assert (reply.status, list(reply.json())) == (400, ["error"])


def test_the_openapi_document_has_the_calls_where_they_are_on(
    enabled: ServerProcess, key: str
) -> None:
    document = call(enabled, "GET", "/openapi.json").json()
    validate(document)
    calls = {path for path in document["paths"] if "sharedmemory" in path}
    assert len(calls) == 5
    region = registered(enabled, key)
    for path in sorted(calls):  # `register` again: 409
        method = "GET" if path.endswith("status") else "POST"
        body = json.dumps({"key": key, "offset": 0, "byte_size": 1}).encode()
        reply = call(enabled, method, path.format(region=region), body)
        assert str(reply.status) in document["paths"][path][method.lower()]["responses"]


def test_off_by_default(server: ServerProcess) -> None:
    """Status and unregister answer; what needs regions is refused in words."""
    assert call(server, "GET", STATUS).json() == []
    assert call(server, "GET", "/v2/systemsharedmemory/region/r/status").status == 404
    for path in ("unregister", "region/r/unregister"):
        assert call(server, "POST", f"/v2/systemsharedmemory/{path}", b"").status == 200
        assert call(server, "POST", f"/v2/cudasharedmemory/{path}", b"").status == 200
    assert call(server, "GET", "/v2/cudasharedmemory/status").json() == []
    body = b'{"key":"/x","offset":0,"byte_size":1}'
    reply = call(server, "POST", REGISTER.format("x"), body)
    assert reply.status == 501
    assert "shared_memory_objects" in reply.json()["error"]
    assert call(server, "POST", "/v2/cudasharedmemory/region/x/register", body).status == 501
    assert infer(server, "r").status == 501
    assert "sharedmemory" not in call(server, "GET", "/openapi.json").body.decode()
    assert "system_shared_memory" not in call(server, "GET", "/v2").json()["extensions"]
