"""Tensors of TensorFlow Serving: read like protobuf reads them, in slices, within limits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.tensors import DATATYPES, Array, TensorError, object_array
from model_store.safety.protobuf_fields import fields_of
from protos import tensorflow_serving_pb2 as pb
from services.errors import InvalidRequestError
from services.gateway.edges.binary_texts import TEXT_OVERHEAD_BYTES
from services.gateway.edges.grpc_raw import MAX_FIELDS, MAX_INNER_FIELDS, MAX_TYPED_BYTES, Allowance
from services.gateway.edges.predict import tensor_proto
from services.gateway.edges.predict.grpc_predict import (
    MAX_NAMES_BYTES,
    read_inputs,
    read_request,
)
from services.gateway.edges.predict.tensor_proto import (
    MAX_REPEATED_BYTES,
    MAX_SHAPE_BYTES,
    read_tensor,
    tensor_parts,
    varints,
)
from services.gateway.sliced_work import at_once

NUMBERS = sorted(set(DATATYPES) - {"BYTES"})


class Reserved(list[int]):
    def __call__(self, size: int) -> None:
        self.append(size)


def read(body: bytes, reserve: Any = lambda _: None) -> tuple[str, Array]:
    return at_once(read_tensor(memoryview(body), 0, len(body), Allowance(), reserve))


def written(datatype: str, array: Array) -> bytes:
    return b"".join(at_once(tensor_parts(datatype, array, lambda _: None)))


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_round_trip(datatype: str) -> None:
    dtype = DATATYPES[datatype]
    bits = np.random.default_rng(7).integers(0, 256, 6000 * dtype.itemsize, np.uint8)
    array = (bits % 2 if datatype == "BOOL" else bits).view(dtype).reshape(2, -1)
    found, values = read(written(datatype, array))
    assert found == datatype
    assert (values.dtype, values.shape, values.tobytes()) == (dtype, array.shape, array.tobytes())


def test_texts_round_trip() -> None:
    texts = [b"", b"\x00", b"\xff" * 300, b"a" * (300 * 1024), *[b"x"] * 5000]
    reserved = Reserved()
    body = written("BYTES", object_array(texts))
    found, values = read(body, reserved)
    assert (found, values.tolist()) == ("BYTES", texts)
    assert sum(reserved) > sum(map(len, texts))


def test_what_is_written_is_read_by_protobuf() -> None:
    array = np.arange(-5000, 5000, dtype=np.int32)
    message = pb.TensorProto.FromString(written("INT32", array))
    assert list(message.int_val) == array.tolist()
    assert message.dtype == pb.DT_INT32


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_varints(numbers: list[int]) -> None:
    body = pb.TensorProto(uint64_val=numbers).SerializeToString()
    ((_, _, start, end),) = fields_of(body, 0, len(body))
    assert varints(memoryview(body)[start:end]).tolist() == numbers


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\x80", "end within"), (b"\x01\xff", "end within"), (b"\x80" * 10 + b"\x01", "11 bytes")],
)
def test_broken_varints(data: bytes, words: str) -> None:
    with pytest.raises(TensorError, match=words):
        varints(memoryview(data))


def test_numbers_may_come_one_by_one_and_in_pieces() -> None:
    shape = pb.TensorProto(dtype="DT_INT64", tensor_shape={"dim": [{"size": 5}]})
    pieces = b"\x50\x01" + b"\x52\x02\x02\x03" + b"\x50" + b"\xff" * 9 + b"\x01" + b"\x52\x01\x04"
    assert read(pieces + shape.SerializeToString())[1].tolist() == [1, 2, 3, -1, 4]
    shape.dtype = pb.DT_FLOAT
    floats = np.arange(5, dtype="<f4").tobytes()
    pieces = b"\x2d" + floats[:4] + b"\x2a\x08" + floats[4:12] + b"\x2a\x08" + floats[12:]
    assert read(shape.SerializeToString() + pieces)[1].tolist() == [0, 1, 2, 3, 4]


def test_tensor_content_is_viewed() -> None:
    array = np.arange(1000, dtype=np.float32)
    message = pb.TensorProto(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 1000}]})
    message.tensor_content = array.tobytes()
    body = message.SerializeToString()
    values = read(body)[1]
    assert np.shares_memory(values, np.frombuffer(body, np.uint8))
    message.ClearField("tensor_content")
    message.float_val.extend(array)
    body = message.SerializeToString()
    assert np.shares_memory(read(body)[1], np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    "datatype", ["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "FP16"]
)
def test_numbers_that_do_not_fit(datatype: str) -> None:
    field = {"UINT32": 16, "FP16": 13}.get(datatype, 7)
    beyond = 2**16 if datatype == "FP16" else int(np.iinfo(DATATYPES[datatype].str).max) + 1
    single = pb.TensorProto(uint64_val=[beyond]).SerializeToString()
    packed = bytes([0x82 if field > 15 else field << 3 | 2]) + (b"\x01" if field > 15 else b"")
    body = pb.TensorProto(dtype=tensor_proto.type_of(datatype)).SerializeToString()
    with pytest.raises(TensorError, match=f"holds {beyond}"):
        read(body + packed + single[2:])


def test_work_by_element_is_done_in_slices() -> None:
    def steps(message: pb.TensorProto) -> int:
        body = message.SerializeToString()
        slices: Iterator[None] = read_tensor(
            memoryview(body), 0, len(body), Allowance(), lambda _: None
        )
        return sum(1 for _ in slices)

    shape = {"dim": [{"size": 400_000}]}
    ones = pb.TensorProto(dtype="DT_INT64", tensor_shape=shape, int64_val=[1] * 400_000)
    assert steps(ones) >= 400_000 // 2**16
    texts = pb.TensorProto(dtype="DT_STRING", tensor_shape=shape, string_val=[b""] * 400_000)
    assert steps(texts) >= 400_000 // 1024


def test_pieces_are_joined_in_slices_of_reserved_memory() -> None:
    half = np.arange(2**18, dtype="<f4").tobytes()
    field = pb.TensorProto(float_val=np.frombuffer(half, "<f4")).SerializeToString()
    shape = pb.TensorProto(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 2**19}]})
    body = shape.SerializeToString() + field * 2
    reserved = Reserved()
    slices = read_tensor(memoryview(body), 0, len(body), Allowance(), reserved)
    assert sum(1 for _ in slices) >= 8
    assert sum(reserved) == 2 * len(half)
    assert read(body)[1].tobytes() == half * 2


def test_one_text_stands_for_all() -> None:
    def asked(text: bytes, count: int) -> bytes:
        shape = {"dim": [{"size": count}]}
        return pb.TensorProto(
            dtype="DT_STRING", tensor_shape=shape, string_val=[text]
        ).SerializeToString()

    assert read(asked(b"x\x00", 3))[1].tolist() == [b"x\x00"] * 3
    assert read(asked(b"", 3))[1].tolist() == [b""] * 3
    fits = MAX_REPEATED_BYTES // (100 + TEXT_OVERHEAD_BYTES)
    reserved = Reserved()
    assert read(asked(b"x" * 100, fits), reserved)[1].size == fits
    assert sum(reserved) > fits * 100
    with pytest.raises(TensorError, match="send all elements"):
        read(asked(b"x" * 100, fits + 1))


def test_a_broken_shape_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not a valid message"):
        read(b"\x08\x01\x12\x03\x12\xff\x01")


def test_limits_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = pb.TensorProto(dtype="DT_INT64", int64_val=[1] * (MAX_TYPED_BYTES + 1))
    with pytest.raises(TensorError, match="send them as tensor_content"):
        read(ones.SerializeToString())
    long = {"dim": [{"name": "x" * MAX_SHAPE_BYTES}]}
    named = pb.TensorProto(dtype="DT_INT64", tensor_shape=long)
    unknown = {"unknown_rank": True}
    with pytest.raises(TensorError, match="names of dimensions"):
        read(named.SerializeToString())
    with pytest.raises(TensorError, match="unknown_rank"):
        read(pb.TensorProto(dtype="DT_INT64", tensor_shape=unknown).SerializeToString())
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_INNER_FIELDS} fields"):
        read(b"\x50\x01" * (MAX_INNER_FIELDS + 1))
    monkeypatch.setattr(tensor_proto, "MAX_TEXTS", 10)
    with pytest.raises(TensorError, match="over 10 elements"):
        read(pb.TensorProto(dtype="DT_STRING", string_val=[b""] * 11).SerializeToString())


def test_limits_of_a_message() -> None:
    def asked(**fields: Any) -> memoryview:
        return memoryview(pb.PredictRequest(**fields).SerializeToString())

    with pytest.raises(InvalidRequestError, match=f"more than {MAX_FIELDS} inputs"):
        read_request(asked(output_filter=["y"] * (MAX_FIELDS + 1)))
    for long in (
        {"output_filter": ["y" * (MAX_NAMES_BYTES + 1)]},
        {"model_spec": {"name": "y" * MAX_NAMES_BYTES}},
    ):
        with pytest.raises(InvalidRequestError, match="names in the message"):
            read_request(asked(**long))
    message = asked(inputs={"x" * (MAX_NAMES_BYTES + 1): pb.TensorProto(dtype="DT_FLOAT")})
    with pytest.raises(InvalidRequestError, match="names in the message"):
        at_once(read_inputs(message, read_request(message), lambda _: None))


def test_an_input_without_a_tensor_is_refused_by_name() -> None:
    message = memoryview(b"\x12\x03\x0a\x01x")
    with pytest.raises(InvalidRequestError, match="input 'x': dtype is 0"):
        at_once(read_inputs(message, read_request(message), lambda _: None))
