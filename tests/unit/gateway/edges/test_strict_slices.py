"""Large requests in slices: always the same result as the exact parser's."""

import json
import random
import string
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flambeau.protocol.tensors import encode_raw
from services.errors import BufferFullError, InvalidRequestError, ServingError
from services.gateway.edges.binary_texts import MAX_TEXTS, TEXT_OVERHEAD_BYTES
from services.gateway.edges.json_bodies import slices as json_slices
from services.gateway.edges.json_bodies import spans as json_spans
from services.gateway.edges.json_bodies.spans import MAX_BESIDE_BYTES, MAX_BESIDE_MEMBERS
from services.gateway.edges.json_bodies.strict_request import RestRequest, read_strictly
from services.gateway.edges.json_bodies.strict_slices import read_in_slices
from services.gateway.sliced_work import at_once
from tests.unit.gateway.edges.test_request_readers import (
    DOCUMENTS,
    NOTHING,
    entry,
    number_requests,
    plain,
)

ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
MIB = 2**20


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small bodies take the code path of megabytes."""
    monkeypatch.setattr(json_spans, "MIN_CUT_BYTES", 2)
    monkeypatch.setattr(json_spans, "FIRST_WINDOW_BYTES", 3)
    monkeypatch.setattr(json_spans, "WINDOW_BYTES", 7)
    monkeypatch.setattr(json_spans, "MASK_BYTES", 7)
    monkeypatch.setattr(json_slices, "COUNTED_BYTES", 7)
    monkeypatch.setattr(json_slices, "NUMBERS_BYTES", 420)
    monkeypatch.setattr(json_slices, "TEXTS_BYTES", 40)
    monkeypatch.setattr(json_slices, "LONG_TEXT_BYTES", 64)


IN_SMALL_PIECES = pytest.mark.usefixtures("small_pieces")


def read(head: bytes, binary: memoryview = NOTHING) -> RestRequest:
    return at_once(read_in_slices(head, binary))


def body_of(data: str, shape: list[int], datatype: str = "FP32") -> bytes:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": orjson.Fragment(data)}
    return orjson.dumps({"inputs": [tensor]})


def agrees(head: bytes, binary: memoryview = NOTHING) -> bool:
    """Returns True if the request is valid; both parsers must agree on that and on its content."""
    try:
        wanted: Any = plain(read_strictly(head, binary))
    except ServingError as error:
        wanted = type(error)
    try:
        found: Any = plain(read(head, binary))
    except ServingError as error:
        found = type(error)
    assert found == wanted
    return isinstance(wanted, tuple)


@IN_SMALL_PIECES
@ANY
@given(head=number_requests())
def test_any_numbers(head: bytes) -> None:
    agrees(head)


@IN_SMALL_PIECES
@ANY
@given(document=DOCUMENTS, binary=st.binary(max_size=9))
def test_any_document(document: Any, binary: bytes) -> None:
    agrees(orjson.dumps(document), memoryview(binary))


@IN_SMALL_PIECES
@ANY
@given(
    document=DOCUMENTS, place=st.floats(0, 1), cut=st.integers(0, 2), paste=st.binary(max_size=2)
)
def test_any_damage(document: Any, place: float, cut: int, paste: bytes) -> None:
    head = orjson.dumps(document)
    start = int(place * len(head))
    agrees(head[:start] + paste + head[start + cut :])


LISTS = st.recursive(
    st.integers(0, 9) | st.sampled_from(["", "a", 'b"]', ",", "\\", "[", None, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("data"), inner),
    max_leaves=12,
)


@IN_SMALL_PIECES
@ANY
@given(
    data=st.lists(LISTS, max_size=4),
    shape=st.lists(st.integers(0, 4), max_size=3),
    datatype=st.sampled_from(["INT32", "BYTES", "BOOL"]),
    indent=st.sampled_from([None, 0, 3]),
    beside=st.sampled_from([{}, {"data": [1, 2, 3]}, {"parameters": {"data": [1]}}]),
)
def test_any_lists(
    data: Any, shape: list[int], datatype: str, indent: int | None, beside: dict[str, Any]
) -> None:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    agrees(json.dumps({"inputs": [tensor], **beside}, indent=indent).encode())


@IN_SMALL_PIECES
@ANY
@given(
    texts=st.lists(st.text(max_size=120), min_size=1, max_size=8),
    nested=st.booleans(),
    escaped=st.booleans(),
)
def test_any_texts(texts: list[str], nested: bool, escaped: bool) -> None:
    shape = [len(texts), 1, 1] if nested else [len(texts)]
    data = [[[text]] for text in texts] if nested else texts
    head = body_of(json.dumps(data, ensure_ascii=escaped), shape, "BYTES")
    assert agrees(head)


@IN_SMALL_PIECES
@ANY
@given(
    pieces=st.lists(
        st.sampled_from(["[", "]", "[[", "]]", ",", " ", "1", "2", "],[", "[1,2]", '"', "{}"]),
        max_size=12,
    ),
    shape=st.lists(st.integers(1, 2), max_size=3),
)
def test_any_brackets(pieces: list[str], shape: list[int]) -> None:
    agrees(body_of(f"[{''.join(pieces)}]", shape, "INT32"))


@IN_SMALL_PIECES
@pytest.mark.parametrize(
    ("data", "shape"), [("[]", [0]), ("[[],[]]", [2, 0]), ("[[[]]]", [1, 1, 0])]
)
def test_a_tensor_without_elements_may_be_nested_as_its_shape(data: str, shape: list[int]) -> None:
    head = body_of(data, shape)
    assert agrees(head)
    (found,) = read(head).inputs
    assert found.array.shape == tuple(shape)


@IN_SMALL_PIECES
@pytest.mark.parametrize("space", ["", " ", "\n        "])
def test_nested_numbers_in_many_slices(space: str) -> None:
    array = np.arange(3 * 40 * 5, dtype=np.int64).reshape(3, 40, 5)
    text = str(array.tolist()).replace(" ", space)
    (found,) = read(body_of(text, [3, 40, 5], "INT64")).inputs
    assert found.array.tolist() == array.tolist()
    for wrong in (text.replace("]", "", 1) + "]", text.replace("]," + space + "[", "," + space, 1)):
        with pytest.raises(InvalidRequestError):
            read(body_of(wrong, [3, 40, 5], "INT64"))


@IN_SMALL_PIECES
def test_long_text_is_cut_between_characters() -> None:
    random_ = random.Random(4)
    alphabet = [*string.ascii_letters, "é", "😀", "\\", '"', "\n", ",", "]", "\u2028"]
    for ascii_only in (True, False):
        texts = ["".join(random_.choices(alphabet, k=500)) for _ in range(20)]
        head = body_of(json.dumps(texts, ensure_ascii=ascii_only), [20], "BYTES")
        assert agrees(head)


@IN_SMALL_PIECES
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30, -(2**64)])
def test_integer_beyond_64_bits_is_out_of_range(number: int) -> None:
    for datatype in ("INT64", "UINT64", "INT8"):
        head = body_of(f"[{number}]", [1], datatype)
        if datatype == "UINT64" and number == -(2**63) - 1:
            continue  # Its float is between those that an UINT64 holds and those that it does not.
        for reader in (read_strictly, lambda head, binary: read(head, binary)):
            with pytest.raises(InvalidRequestError, match=f"outside the range of {datatype}"):
                reader(head, NOTHING)


def test_data_of_no_input_is_refused_if_it_is_large() -> None:
    beside = b'{"inputs":[%b],"data":[%b1]}' % (orjson.dumps(entry()), b"1," * MAX_BESIDE_BYTES)
    with pytest.raises(InvalidRequestError, match="belong to no input"):
        read(beside)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"id":"%b"}' % (b"a" * MAX_BESIDE_BYTES), "bytes beside the 'data'"),
        (b'{"id":"' + b'\\"' * MAX_BESIDE_BYTES, "bytes beside the 'data'"),
        (b"{%b}" % b",".join(b'"%d":1' % n for n in range(MAX_BESIDE_MEMBERS + 1)), "members"),
        (b'{"inputs":[%b]}' % b",".join([b"[]"] * (MAX_BESIDE_MEMBERS + 1)), "members"),
        (b" " * (MAX_BESIDE_BYTES + 1), "bytes beside the 'data'"),
        (b'{"inputs":[{"data":' + b"[" * MIB, "does not end"),
        (b'{"inputs":[{"data":["' + b"a" * MIB, "does not end"),
        (b'{"inputs":[{"data":["' + b"\\" * MIB, "does not end"),
        (body_of(f"[{'[],' * MIB}1]", [4]), "holds .* elements; shape"),
        (body_of(f"[{'1,' * MIB}1]", [4]), "holds 1048577 elements; shape"),
        (body_of('["' + '","' * MIB + '"]', [4], "BYTES"), "holds 1048577 elements; shape"),
        (body_of("[" + "[" * MIB + "1" + "]" * MIB + "]", [1, 1]), "not nested"),
        (body_of(f"[{'9' * MIB}]", [1]), "takes more than"),
        (body_of('["a"]', [1]).replace(b"]}]", b" " * 300 + b"]}]"), "holds a string"),
    ],
)
def test_hostile_body_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read(body)


@IN_SMALL_PIECES
def test_array_is_made_only_if_the_model_takes_it() -> None:
    def check(_: object) -> None:
        raise InvalidRequestError("input 'x' has shape [3]; expected [batch,4]")

    def reserve(size: int) -> None:
        raise AssertionError(size)

    with pytest.raises(InvalidRequestError, match=r"expected \[batch,4\]"):
        at_once(read_in_slices(body_of("[1,null,1]", [3]), NOTHING, check, reserve))


@IN_SMALL_PIECES
def test_memory_is_reserved_before_it_is_taken() -> None:
    def full(size: int) -> None:
        raise BufferFullError(f"{size} bytes")

    with pytest.raises(BufferFullError, match="160"):
        at_once(
            read_in_slices(body_of(f"[{','.join('1' * 20)}]", [20], "FP64"), NOTHING, None, full)
        )
    head, texts = texts_entry(20_000)
    with pytest.raises(BufferFullError):
        at_once(read_in_slices(head, memoryview(texts), reserve=full))


@pytest.mark.parametrize("is_binary", [False, True])
@IN_SMALL_PIECES
def test_body_and_arrays_are_charged_together_until_all_are_made(is_binary: bool) -> None:
    charged: list[int] = []
    if is_binary:
        head, binary = texts_entry(20_000)
        body = binary
        arrays = len(binary) + 20_000 * TEXT_OVERHEAD_BYTES
    else:
        head, binary = body_of(f"[{','.join('1' * 20_000)}]", [20_000], "FP64"), b""
        body = head
        arrays = 20_000 * 8
    at_once(read_in_slices(head, memoryview(binary), reserve=charged.append))
    assert [size for size in charged if size] == [arrays, -len(body)]


@IN_SMALL_PIECES
def test_body_that_an_array_views_stays_charged() -> None:
    numbers = np.ones(20_000, np.float32).tobytes()
    head, texts = texts_entry(20_000, beside=entry(
        name="n", datatype="FP32", shape=[20_000], data=None,
        parameters={"binary_data_size": len(numbers)},
    ))  # fmt: skip
    charged: list[int] = []
    at_once(read_in_slices(head, memoryview(texts + numbers), reserve=charged.append))
    assert sum(charged) == charged[0] == len(texts) + 20_000 * TEXT_OVERHEAD_BYTES


def texts_entry(count: int, beside: dict[str, object] | None = None) -> tuple[bytes, bytes]:
    """Returns the JSON of binary texts, with an optional further input; and the texts."""
    texts = encode_raw("BYTES", np.array([b"ab"] * count, object))
    tensor = entry(datatype="BYTES", shape=[count], data=None)
    tensor["parameters"] = {"binary_data_size": len(texts)}
    return orjson.dumps({"inputs": [tensor, *([beside] if beside else [])]}), texts


def binary_texts(data: bytes, count: int) -> RestRequest:
    tensor = entry(datatype="BYTES", shape=[count], data=None)
    tensor["parameters"] = {"binary_data_size": len(data)}
    return read(orjson.dumps({"inputs": [tensor]}), memoryview(data))


def test_texts_are_counted_before_any_is_made() -> None:
    data = b"\x01\x00\x00\x00a" * 200_000
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="hold at most 250000 elements"):
            binary_texts(data, MAX_TEXTS)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_texts_of_an_input_have_a_limit() -> None:
    count = MAX_TEXTS + 1
    with pytest.raises(InvalidRequestError, match=f"{MAX_TEXTS} of an input are read"):
        binary_texts(bytes(4 * count), count)
    with pytest.raises(InvalidRequestError, match=f"{MAX_TEXTS} of an input are read"):
        read(body_of("[" + '"",' * (count - 1) + '""]', [count], "BYTES"))


@pytest.mark.parametrize(
    "body",
    [
        body_of("[" + "[]," * (3 * MIB) + "0]", [1]),
        body_of("[" + "0," * (4 * MIB) + "0]", [4]),
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[' + b" " * (8 * MIB),
    ],
    ids=["lists", "zeros", "spaces"],
)
def test_body_is_not_copied(body: bytes) -> None:
    received = memoryview(bytearray(body))  # as large bodies are, whether inflated or not
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError):
            at_once(read_in_slices(received, NOTHING))
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()
