"""The fast parser of a request's JSON: it accepts only what the exact one parses equally."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import DATATYPES, Array, encode_raw
from services.errors import ServingError
from services.gateway.edges.json_bodies import fast_request, slices
from services.gateway.edges.json_bodies.fast_request import NOT_FAST, read_fast
from services.gateway.edges.json_bodies.numbers import has_slow_numbers
from services.gateway.edges.json_bodies.strict_request import RestRequest, read_strictly
from services.gateway.edges.json_bodies.strict_slices import read_in_slices
from services.gateway.edges.rest_codec import decode_json
from services.gateway.sliced_work import at_once

Reader = Callable[[bytes, memoryview], RestRequest]
QUICK = pytest.mark.parametrize("read", [read_fast])
NOTHING = memoryview(b"")
NUMBERS = tuple(d for d in DATATYPES if d not in ("BOOL", "FP16", "BF16", "BYTES"))

TOKENS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        [
            "0", "-0", "-0.0", "1.0", "1E2", "1e+2", "5e-324", "1e39", "1e400", "9" * 400, "127",
            "128", "256", "3.4028235677973366e+38", "3.4028235677973362e+38", "01", "1.", ".5",
            "+1", "-", "", "true", "null", "NaN", "{}", '"1"', '"ab"', '"["', '"\\ud800"',
        ]
    ),
)  # fmt: skip
"""Values as text, valid and invalid: parsers differ on some."""


def nest(tokens: list[str], shape: list[int]) -> str:
    """Returns JSON text of the tokens, nested as the shape."""
    if len(shape) < 2:
        return f"[{','.join(tokens)}]"
    step = max(1, len(tokens) // max(1, shape[0]))
    rows = [tokens[start : start + step] for start in range(0, len(tokens), step)]
    return f"[{','.join(nest(row, shape[1:]) for row in rows)}]"


@st.composite
def number_requests(draw: st.DrawFn) -> bytes:
    """Draws a request with a valid shape and datatype and arbitrary values."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = int(np.prod(shape)) + draw(st.sampled_from([0, 0, 0, 0, 1]))
    plain = st.integers(0, 5).map(str)
    tokens = draw(st.lists(draw(st.sampled_from([plain, TOKENS])), min_size=count, max_size=count))
    datatype = draw(st.sampled_from([*NUMBERS, "BOOL", "BYTES", "FP16", "FP31"]))
    nested_as = draw(st.sampled_from([shape, [], [*shape, 1], shape[1:]]))
    return (
        b'{"inputs":[{"name":"x","datatype":"%b","shape":%b,"data":%b}]}'
        % (datatype.encode(), orjson.dumps(shape), nest(tokens, nested_as).encode())
    )  # fmt: skip


ODD = st.none() | st.booleans() | st.integers(-1, 12) | st.sampled_from([1.0, "1", 2**63, [], {}])


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


DATA = st.lists(st.integers(0, 3) | ODD, min_size=1, max_size=2) | ODD
INPUTS = st.fixed_dictionaries(
    {
        "name": st.just("x"),
        "datatype": st.sampled_from(["FP32", "UINT8", "BYTES"]),
        "shape": st.sampled_from([[1], [2], [1, 1], [1, 2]]),
    },
    optional={"data": DATA, "parameters": maybe(binary_data_size=ODD, p=ODD), "extra": ODD},
)
DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(INPUTS, min_size=1, max_size=2)},
    optional={
        "id": st.just("7") | ODD,
        "outputs": st.lists(
            maybe(name=st.just("y"), parameters=maybe(binary_data=ODD, p=ODD)), max_size=2
        ),
        "parameters": maybe(
            timeout=ODD,
            priority=ODD,
            binary_data_output=ODD,
            artifact=st.sampled_from(["", "onnx"]) | ODD,
            accuracy=st.sampled_from(["", "exact", "rough"]) | ODD,
            p=ODD,
        ),
    },
)


def plain(request: RestRequest) -> tuple[object, ...]:
    """Returns the comparable parts of a request."""
    tensors = [
        (t.name, t.datatype, t.array.dtype, t.array.shape, encode_raw(t.datatype, t.array))
        for t in request.inputs
    ]
    rest = (request.id, list(request.outputs), request.binary_by_default, dict(request.binary))
    return tensors, *rest, request.timeout_us, request.priority, request.preference


def agrees_with_the_exact_way(read: Reader, head: bytes, binary: memoryview = NOTHING) -> bool:
    """Returns True if the fast parser accepted the request; then the exact one must agree."""
    try:
        found = plain(read(head, binary))
    except NOT_FAST:
        return False
    except ServingError as error:
        with pytest.raises(
            type(error), match=r"parameters? '(timeout|priority|artifact|accuracy)'"
        ):
            read_strictly(head, binary)
        return True
    assert found == plain(read_strictly(head, binary))
    return True


@QUICK
@given(head=number_requests())
def test_any_values(read: Reader, head: bytes) -> None:
    agrees_with_the_exact_way(read, head)


@QUICK
@given(document=DOCUMENTS, binary=st.binary(max_size=9))
def test_any_document(read: Reader, document: Any, binary: bytes) -> None:
    agrees_with_the_exact_way(read, orjson.dumps(document), memoryview(binary))


@QUICK
@given(
    document=DOCUMENTS, place=st.floats(0, 1), cut=st.integers(0, 2), paste=st.binary(max_size=2)
)
def test_any_damage_to_a_document(
    read: Reader, document: Any, place: float, cut: int, paste: bytes
) -> None:
    head = orjson.dumps(document)
    start = int(place * len(head))
    agrees_with_the_exact_way(read, head[:start] + paste + head[start + cut :])


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, Array]:
    datatype = draw(st.sampled_from(NUMBERS))
    finite = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else None
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, max_side=4))
    return datatype, draw(npst.arrays(DATATYPES[datatype], shape, elements=finite))


@QUICK
@given(tensor=arrays(), nested=st.booleans(), wishes=st.booleans())
def test_every_tensor_of_numbers_is_taken(
    read: Reader, tensor: tuple[str, Array], nested: bool, wishes: bool
) -> None:
    datatype, array = tensor
    data = array.tolist() if nested else array.ravel().tolist()
    fields: dict[str, Any] = {"outputs": [{"name": "y"}], "id": "7"} if wishes else {}
    entry = {"name": "x", "datatype": datatype, "shape": array.shape, "data": data}
    head = orjson.dumps({"inputs": [entry], **fields})
    assert agrees_with_the_exact_way(read, head) or has_slow_numbers(head)


@given(st.lists(st.text(max_size=3), min_size=1, max_size=4))
def test_texts_are_taken(texts: list[str]) -> None:
    entry = {"name": "x", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    assert agrees_with_the_exact_way(read_fast, orjson.dumps({"inputs": [entry]}))


@QUICK
def test_binary_inputs_are_taken(read: Reader) -> None:
    entries = [
        {"name": "a", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        {"name": "b", "datatype": "INT8", "shape": [1], "data": [1]},
        {"name": "c", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
    ]
    head = orjson.dumps({"inputs": entries, "parameters": {"binary_data_output": True}})
    assert agrees_with_the_exact_way(read, head, memoryview(struct.pack("<2f3B", 1, 2, 3, 4, 5)))


@QUICK
@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 2], "[[[1],2],[3,4]]"), ([3], "[[1],[2,3],[]]"), ([2, 2], "[[1,2,3],[4]]"),
        ([2, 2], "[[1,2],3,4]"), ([4], "[[1,2],[3,4]]"), ([1, 4], "[[1,2],[3,4]]"),
        ([2], "[true,false]"), ([2], "[1,null]"), ([1], '["1"]'), ([2, 1], '["a","b"]'),
        ([0], "[]"), ([0, 2], "[]"), ([], "[]"), ([-1, -4], "[1,2,3,4]"), ([2], "[1e39,1]"),
        ([1] * 65, "[1]"), ([2**40, 2**40], "[1]"), ([1], "[NaN]"), ([1], "1"), ([1], "{}"),
        ([1, 2], "[[1,2],[3]]"), ([2, 0], "[[],[],[]]"),
    ],
)  # fmt: skip
def test_what_is_not_plainly_right_is_left_to_the_exact_way(
    read: Reader, shape: list[int], data: str
) -> None:
    entry = b'{"name":"x","datatype":"FP32","shape":%b,"data":%b}'
    entry %= orjson.dumps(shape), data.encode()
    with pytest.raises(NOT_FAST):
        read(b'{"inputs":[%b]}' % entry, NOTHING)


def entry(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1], "data": [1]} | changes
    return {key: value for key, value in tensor.items() if value is not None}


def size(value: int) -> dict[str, int]:
    return {"binary_data_size": value}


@QUICK
@pytest.mark.parametrize(
    "inputs",
    [
        [entry(data=None)],
        [entry(parameters=size(2), shape=[2])],
        [entry(parameters=size(1), data=None)],
        [entry(parameters=size(3), shape=[3], data=None)],
        [entry(shape=[1], data=None, parameters=size(-1)),
         entry(shape=[1], data=None, parameters=size(3))],
    ],
    ids=["no data", "both forms", "bytes left", "bytes missing", "negative"],
)  # fmt: skip
def test_data_that_do_not_add_up(read: Reader, inputs: list[dict[str, Any]]) -> None:
    with pytest.raises(NOT_FAST):
        read(orjson.dumps({"inputs": inputs}), memoryview(b"\x01\x02"))


def test_letters_are_no_texts() -> None:
    tensor = entry(datatype="BYTES", shape=[1, 2, 2], data=[["ab", "cd"]])
    with pytest.raises(NOT_FAST):
        read_fast(orjson.dumps({"inputs": [tensor]}), NOTHING)


@QUICK
@pytest.mark.parametrize(
    "fields", [b'"x":1', b'"x":"\xff"', b'"id":"\xff"', b'"parameters":{"p":1}', b'"outputs":[[]]']
)
def test_fields_that_are_not_plainly_right(read: Reader, fields: bytes) -> None:
    with pytest.raises(NOT_FAST):
        read(b'{"inputs":[%b],%b}' % (orjson.dumps(entry()), fields), NOTHING)


@pytest.mark.parametrize("fields", [b'"id":"a","id":"b"', b'"id":7,"id":"b"', b'"id":"b","id":7'])
def test_key_that_occurs_twice(fields: bytes) -> None:
    """JSON leaves open which counts; here it is the last, or the request is refused."""
    head = b'{"inputs":[%b],%b}' % (orjson.dumps(entry()), fields)
    agrees_with_the_exact_way(read_fast, head)


@QUICK
def test_shape_without_end(read: Reader) -> None:
    """Its product alone would take hours."""
    with pytest.raises(NOT_FAST):
        read(orjson.dumps({"inputs": [entry(shape=[2**62] * 300_000)]}), NOTHING)


@QUICK
def test_nesting_without_end(read: Reader) -> None:
    for head in (b"[" * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"inputs":' * 2_000):
        with pytest.raises(NOT_FAST):
            read(head, NOTHING)


@pytest.mark.parametrize("error", [TypeError, AttributeError, LookupError, struct.error])
def test_bug_of_a_fast_way_surfaces(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slower answer would hide it."""

    def broken(datatype: str, shape: object, data: object) -> Array:
        raise error("a bug")

    head = orjson.dumps({"inputs": [entry()]})
    monkeypatch.setattr(fast_request, "packed", broken)
    with pytest.raises(error, match="a bug"):
        decode_json(head)
    large = orjson.dumps({"inputs": [entry(shape=[300], data=[1] * 300)]})
    monkeypatch.setattr(slices, "packed", broken)
    with pytest.raises(error, match="a bug"):
        at_once(read_in_slices(large, NOTHING))
