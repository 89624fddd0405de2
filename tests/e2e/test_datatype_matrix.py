"""Every datatype in every form: JSON nested and flat, binary, gRPC contents and raw, in and out.

The answer comes in the form of the request, bit for bit; `refused` has what does not fit.
"""

import json
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from flambeau.protocol.tensors import DATATYPES, decode_raw, encode_raw, object_array
from model_store.golden import GoldenRows
from tests.e2e.grpc_calls import error_of
from tests.e2e.rest_calls import Reply, call, infer_path
from tests.e2e.tensor_values import CONTENTS_FIELDS, VALUES, Array, assert_same_bits, echo_model
from tests.fixtures.python_models import publish, signature_of
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

ECHO = """
class Model:
    def infer(self, inputs):
        return {name.replace("in_", "out_"): array for name, array in inputs.items()}
"""
BEYOND_ONNX = ("BF16", "BYTES")
"""Echoed by a Python model: texts of ONNX Runtime are UTF-8, and it has no BF16 for NumPy."""
WITHOUT_TEXT = ("FP16", "BF16")
"""Datatypes without a form in JSON and in contents."""
TEXTS = [b"", b"a\x00b\x00", b"\xff\xfe", "é✓".encode(), b"x" * 1000, b"\x00"]

CASES: dict[str, Array] = VALUES | {
    "BF16": np.array([[0x0000, 0x8000, 0x3F80], [0x7F80, 0xFF80, 0x7FC1]], np.uint16),
    "BYTES": object_array(TEXTS).reshape(2, 3),
}
BEYOND = {  # floats that are no number, and the smallest
    datatype: np.array([[np.nan, np.inf, -np.inf, np.finfo(dtype).smallest_subnormal]], dtype)
    for datatype, dtype in (("FP16", "f2"), ("FP32", "f4"), ("FP64", "f8"))
}


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server of the models that ONNX Runtime cannot run."""
    store = tmp_path_factory.mktemp("store")
    for datatype in BEYOND_ONNX:
        signature = signature_of(
            [(f"in_{datatype}", datatype, (-1, -1))], [(f"out_{datatype}", datatype, (-1, -1))]
        )
        value = object_array([b"a"] * 8) if datatype == "BYTES" else np.ones(8, np.uint16)
        rows = value.reshape(8, 1)
        golden = GoldenRows({f"in_{datatype}": rows}, {f"out_{datatype}": rows})
        publish(str(store), echo_model(datatype), ECHO, signature, golden)
    with running_server(store) as running:
        yield running


def entry(datatype: str, array: Array, **fields: Any) -> dict[str, Any]:
    return {"name": f"in_{datatype}", "datatype": datatype, "shape": array.shape, **fields}


def plain(array: Array) -> Any:
    if array.dtype.hasobject:
        return np.vectorize(bytes.decode, otypes=[object])(array).tolist() if array.size else []
    return array.tolist()


def rest(server: ServerProcess, head: Any, binary: bytes | None = None) -> Reply:
    text = json.dumps(head).encode()
    headers = {} if binary is None else {"inference-header-content-length": str(len(text))}
    (one,) = head["inputs"]
    path = infer_path(echo_model(one["datatype"]))
    return call(server, "POST", path, text + (binary or b""), headers)


def output_of(reply: Reply, *, is_binary: bool) -> Array:
    assert reply.status == 200, reply.body
    length = int(reply.headers["inference-header-content-length"] or len(reply.body))
    assert (length < len(reply.body)) <= is_binary
    (output,) = json.loads(reply.body[:length])["outputs"]
    if is_binary:
        assert output["parameters"] == {"binary_data_size": len(reply.body) - length}
        return decode_raw(output["datatype"], output["shape"], reply.body[length:])
    data = output["data"]
    if output["datatype"] == "BYTES":
        return object_array([text.encode() for text in data]).reshape(output["shape"])
    return np.array(data, DATATYPES[output["datatype"]]).reshape(output["shape"])


def json_nested(server: ServerProcess, datatype: str, array: Array) -> Array:
    data = plain(array)
    return output_of(rest(server, {"inputs": [entry(datatype, array, data=data)]}), is_binary=False)


def json_flat(server: ServerProcess, datatype: str, array: Array) -> Array:
    data = plain(array.ravel())
    return output_of(rest(server, {"inputs": [entry(datatype, array, data=data)]}), is_binary=False)


def binary(server: ServerProcess, datatype: str, array: Array) -> Array:
    raw = encode_raw(datatype, array)
    one = entry(datatype, array, parameters={"binary_data_size": len(raw)})
    head = {"inputs": [one], "parameters": {"binary_data_output": True}}
    return output_of(rest(server, head, raw), is_binary=True)


def message(datatype: str, array: Array, *, is_raw: bool) -> Any:
    request = pb.ModelInferRequest(model_name=echo_model(datatype))
    tensor = request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=array.shape)
    if is_raw:
        request.raw_input_contents.append(encode_raw(datatype, array))
    else:
        field = "bytes_contents" if datatype == "BYTES" else CONTENTS_FIELDS[datatype]
        getattr(tensor.contents, field).extend(array.ravel().tolist())
    return request


def contents(server: ServerProcess, datatype: str, array: Array) -> Array:
    with grpc.insecure_channel(server.grpc) as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(
            message(datatype, array, is_raw=False)
        )
    (output,) = answer.outputs
    assert not answer.raw_output_contents
    field = "bytes_contents" if datatype == "BYTES" else CONTENTS_FIELDS[datatype]
    values = list(getattr(output.contents, field))
    flat = object_array(values) if datatype == "BYTES" else np.array(values, DATATYPES[datatype])
    return flat.reshape(tuple(output.shape))


def raw(server: ServerProcess, datatype: str, array: Array) -> Array:
    with grpc.insecure_channel(server.grpc) as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(message(datatype, array, is_raw=True))
    (output,) = answer.outputs
    assert not output.HasField("contents")
    return decode_raw(output.datatype, list(output.shape), answer.raw_output_contents[0])


def tritonclient(kind: str, **how: Any) -> Callable[[ServerProcess, str, Array], Array]:
    def ask(server: ServerProcess, datatype: str, array: Array) -> Array:
        address = server.http if kind == "http" else server.grpc
        wanted = {f"out_{datatype}": how}
        given = {f"in_{datatype}": (array, how)}
        with TritonClient(kind, address) as client:
            answer = client.infer(echo_model(datatype), given, wanted)
        found = answer.outputs[f"out_{datatype}"]
        if kind == "http" and datatype == "BYTES" and not how["binary_data"]:  # it gives text
            return object_array([text.encode() for text in found.ravel()]).reshape(found.shape)
        return found

    return ask


FORMS: dict[str, Callable[[ServerProcess, str, Array], Array]] = {
    "JSON nested": json_nested,
    "JSON flat": json_flat,
    "binary": binary,
    "gRPC contents": contents,
    "gRPC raw": raw,
    "tritonclient JSON": tritonclient("http", binary_data=False),
    "tritonclient binary": tritonclient("http", binary_data=True),
    "tritonclient gRPC": tritonclient("grpc"),
}
TEXT_FORMS = ("JSON nested", "JSON flat", "tritonclient JSON")
"""Forms in which BYTES are UTF-8."""


def server_of(datatype: str, request: pytest.FixtureRequest) -> ServerProcess:
    name = "other_server" if datatype in BEYOND_ONNX else "server"
    found: ServerProcess = request.getfixturevalue(name)
    return found


def has_form(datatype: str, form: str) -> bool:
    if form.startswith("tritonclient") and datatype == "BF16":
        return False  # NumPy has no such type to give it
    return datatype not in WITHOUT_TEXT or form not in (*TEXT_FORMS, "gRPC contents")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("datatype", CASES)
def test_round_trip(
    server: ServerProcess, request: pytest.FixtureRequest, datatype: str, form: str
) -> None:
    if not has_form(datatype, form):
        return
    array = CASES[datatype]
    if datatype == "BYTES" and form in TEXT_FORMS:
        array = object_array([text for text in TEXTS if text != b"\xff\xfe"]).reshape(1, 5)
    empty = array[:1, :0]
    for given in (array, empty, *([BEYOND[datatype]] if datatype in BEYOND else [])):
        found = FORMS[form](server_of(datatype, request), datatype, given)
        if given.dtype.hasobject:
            assert found.tolist() == given.tolist()
            assert found.shape == given.shape
        elif np.issubdtype(given.dtype, np.floating) and np.isnan(given).any():
            np.testing.assert_array_equal(found, given)
        else:
            assert_same_bits(found, given)


LIMITS = {
    name: np.iinfo(dtype.str) for name, dtype in DATATYPES.items()
    if dtype.kind in "iu" and name != "BF16"
}  # fmt: skip


@pytest.mark.parametrize("datatype", LIMITS)
def test_number_out_of_range(server: ServerProcess, stub: Any, datatype: str) -> None:
    for value in (int(LIMITS[datatype].max) + 1, int(LIMITS[datatype].min) - 1):
        for data in ([[1, value]], [1, value]):
            reply = rest(server, {"inputs": [entry(datatype, np.zeros((1, 2)), data=data)]})
            assert reply.status == 400, reply.body
            assert datatype in reply.error()
        if LIMITS[datatype].bits < 64 and not (datatype.startswith("U") and value < 0):
            if LIMITS[datatype].bits == 32:
                continue  # the field of contents has no room for it either
            request = message(datatype, np.zeros((1, 1), np.int64), is_raw=False)
            field = getattr(request.inputs[0].contents, CONTENTS_FIELDS[datatype])
            field[0] = value
            code, details = error_of(partial(stub.ModelInfer, request))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert datatype in details


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("FP32", [1e39], "outside the range of FP32"),
        ("INT8", [1.5], "fraction"),
        ("BOOL", [1], "true or false"),
        ("INT8", [True], "boolean"),
        ("FP32", ["1"], "string"),
        ("BOOL", [None], "null"),
        ("FP16", [1], "no JSON form"),
        ("INT64", [float("nan")], "whole numbers"),
    ],
)
def test_value_that_json_cannot_give(
    server: ServerProcess, datatype: str, data: list[Any], words: str
) -> None:
    reply = rest(server, {"inputs": [entry(datatype, np.zeros((1, 1)), data=data)]})
    assert reply.status == 400
    assert words in reply.error()


@pytest.mark.parametrize("datatype", CASES)
def test_raw_bytes_that_do_not_fit(
    server: ServerProcess, request: pytest.FixtureRequest, datatype: str
) -> None:
    asked = server_of(datatype, request)
    array = CASES[datatype]
    good = encode_raw(datatype, array)
    wrong = {"too few": good[:-1], "too many": good + b"\0"}
    if datatype == "BOOL":
        wrong["neither 0 nor 1"] = b"\x02" * len(good)
    if datatype == "BYTES":
        wrong["a length beyond the end"] = struct.pack("<I", 2**32 - 1) + good[4:]
    for octets in wrong.values():
        one = entry(datatype, array, parameters={"binary_data_size": len(octets)})
        reply = rest(asked, {"inputs": [one]}, octets)
        assert reply.status == 400, reply.body
        call_ = message(datatype, array, is_raw=True)
        call_.raw_input_contents[0] = octets
        with grpc.insecure_channel(asked.grpc) as channel:
            stub = GRPCInferenceServiceStub(channel)
            code, details = error_of(partial(stub.ModelInfer, call_))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == reply.error()
