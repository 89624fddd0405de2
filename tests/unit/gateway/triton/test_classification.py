"""Classification: the largest values of each row as texts, in the order and words of Triton."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from protos import open_inference_pb2 as pb
from services.errors import BufferFullError, InvalidRequestError, UnsupportedError
from services.gateway.edges import grpc_codec, rest_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.sliced_work import at_once
from services.gateway.triton.classes import (
    Classes,
    ClassesOf,
    checked_count,
    classes_of,
    refuse_in_jobs,
)
from services.gateway.triton.classification import MAX_CLASS_TEXTS, MAX_CLASSES, classified
from services.queueing.records import InferReply
from tests.fixtures.queue_ends import reply_of

LABELS = ("ant", "bee", "cat", "dog")


def reply(array: Array, datatype: str = "FP32") -> InferReply:
    return reply_of({"y": array}, datatypes={"y": datatype})


def texts(
    array: Array,
    count: int,
    labels: Sequence[str] = (),
    axis: int | None = 0,
    datatype: str = "FP32",
) -> Any:
    classes = {"y": ClassesOf(count, axis, labels)}
    found = at_once(classified(reply(array, datatype), classes, int))
    assert found.datatypes["y"] == "BYTES"
    return found.outputs["y"].astype("U").tolist()


def test_largest_first_with_labels_and_ties_in_order() -> None:
    row = np.array([[0.2, 6, -4, 6]], np.float32)
    told = ["6.000000:1:bee", "6.000000:3:dog", "0.200000:0:ant", "-4.000000:2:cat"]
    for count in (1, 2, 4):
        assert texts(row, count, LABELS) == [told[:count]]
    assert texts(row, 9, LABELS) == [told], "no more than there are"


@pytest.mark.parametrize(
    ("array", "datatype", "told"),
    [
        (np.array([[5, -7, 9]], np.int32), "INT32", ["9:2", "5:0"]),
        (np.array([[5, 255, 0]], np.uint8), "UINT8", ["255:1", "5:0"]),
        (np.array([[0, 2**64 - 1]], np.uint64), "UINT64", [f"{2**64 - 1}:1", "0:0"]),
        (np.array([[1.5, 2.5]], np.float16), "FP16", ["2.500000:1", "1.500000:0"]),
        (np.array([[0x3F80, 0x4000]], np.uint16), "BF16", ["2.000000:1", "1.000000:0"]),
        (np.array([[1e-9, 1e22]]), "FP64", [f"1{'0' * 22}.000000:1", "0.000000:0"]),
        (np.array([[np.nan, np.inf]], np.float32), "FP32", ["inf:1", "nan:0"]),
        (np.array([[np.nan, -1]], np.float32), "FP32", ["-1.000000:1", "nan:0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_numbers_as_in_c(array: Array, datatype: str, told: list[str]) -> None:
    assert texts(array, 2, datatype=datatype) == [told]


def test_rows_of_every_shape() -> None:
    cube = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    assert texts(cube, 2) == [["5.000000:5", "4.000000:4"], ["11.000000:5", "10.000000:4"]]
    assert texts(cube[0], 2, axis=None) == ["5.000000:5", "4.000000:4"]
    assert texts(cube[0], 1, axis=1) == [["3.000000:1"], ["4.000000:1"], ["5.000000:1"]]
    assert texts(np.zeros((2, 0), np.float32), 3) == [[], []]


@pytest.mark.parametrize(
    ("shape", "count"), [((1, 100_000), 3), ((3, 20_000), 4096), ((200, 700), 600)]
)
def test_many_elements_agree_with_a_plain_sort(shape: tuple[int, int], count: int) -> None:
    array = np.random.default_rng(3).integers(0, 1000, shape).astype(np.uint16)
    expected = [np.argsort(-row.astype(int), kind="stable")[:count] for row in array]
    found = [[int(text.split(":")[1]) for text in row] for row in texts(array, count)]
    assert found == [row.tolist() for row in expected]


def test_limits() -> None:
    wide = np.zeros((1, MAX_CLASSES + 1), np.float32)
    assert len(texts(wide, MAX_CLASSES)[0]) == MAX_CLASSES
    tall = np.zeros((MAX_CLASS_TEXTS // 64 + 1, 64), np.float32)
    for array, count in ((wide, MAX_CLASSES + 1), (tall, 64)):
        with pytest.raises(InvalidRequestError, match=f"at most {MAX_CLASSES} classes of a row"):
            texts(array, count)


def test_memory_is_reserved_before_it_grows() -> None:
    held = 0

    def reserve(size: int) -> None:
        nonlocal held
        held += size
        if held > 200_000:
            raise BufferFullError("full")

    classes = {"y": ClassesOf(4096, 0, ())}
    with pytest.raises(BufferFullError):
        at_once(classified(reply(np.zeros((32, 4096), np.float32)), classes, reserve))
    assert held < 400_000


SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
    outputs=(
        TensorSpec(name="y", datatype="FP32", shape=(-1, 4)),
        TensorSpec(name="cube", datatype="FP32", shape=(-1, 2, 4)),
        TensorSpec(name="flag", datatype="BOOL", shape=(-1, 4)),
        TensorSpec(name="text", datatype="BYTES", shape=(-1, 4)),
    ),
    max_batch_size=8,
    labels={"y": LABELS, "cube": LABELS},
)


def test_labels_are_of_the_signature() -> None:
    found = classes_of({"y": 2, "cube": 3, "unknown": 4}, SIGNATURE)
    assert found == {"y": ClassesOf(2, 0, LABELS), "cube": ClassesOf(3, 0, ())}


@pytest.mark.parametrize("name", ["flag", "text"])
def test_output_without_order(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"unsupported type 'B(OOL|YTES)'"):
        classes_of({name: 1}, SIGNATURE)


@pytest.mark.parametrize("value", [-1, "2", 1.5, True, None, -(2**63)])
def test_wrong_count(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="output 'y' has classification"):
        checked_count(value, "y")


def test_jobs_refuse_it() -> None:
    refuse_in_jobs({})
    with pytest.raises(UnsupportedError, match="output 'y' has classification, which jobs"):
        refuse_in_jobs({"y": 1})


CLASSES: Classes = {"y": ClassesOf(2, 0, LABELS)}


@pytest.mark.parametrize("rows", [2, 1000], ids=["at once", "in slices"])
@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
def test_grpc_answer(rows: int, raw: bool) -> None:
    array = np.tile(np.array([3, 1, 4, 1], np.float32), (rows, 1))
    request = pb.ModelInferRequest(raw_input_contents=[b""] if raw else [])
    message = grpc_codec.encode_serialized(reply(array), request, int, CLASSES)
    assert isinstance(message, bytes) == (rows == 2)
    parts = [message] if isinstance(message, bytes) else at_once(message)
    answer = pb.ModelInferResponse.FromString(b"".join(parts))
    (output,) = answer.outputs
    assert (output.datatype, list(output.shape)) == ("BYTES", [rows, 2])
    told = [b"4.000000:2:cat", b"3.000000:0:ant"] * rows
    if raw:
        octets = b"".join(len(text).to_bytes(4, "little") + text for text in told)
        assert answer.raw_output_contents[0] == octets
    else:
        assert list(output.contents.bytes_contents) == told


@pytest.mark.parametrize("rows", [2, 1000], ids=["at once", "in slices"])
def test_rest_answer(rows: int) -> None:
    array = np.tile(np.array([3, 1, 4, 1], np.float32), (rows, 1))
    body = rest_codec.encode(reply(array), RestRequest(inputs=[]), int, CLASSES)
    assert isinstance(body, rest_codec.RestBody) == (rows == 2)
    whole = body if isinstance(body, rest_codec.RestBody) else at_once(body)
    text = b"".join(whole.parts)
    assert b'"datatype":"BYTES","shape":[%d,2]' % rows in text
    assert text.count(b'"4.000000:2:cat","3.000000:0:ant"') == rows
