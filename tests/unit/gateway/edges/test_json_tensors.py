"""Tensors in JSON: all arrays with a JSON form survive it; invalid ones raise a TensorError."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import DATATYPES, Array, TensorError, as_bytes, object_array
from services.gateway.edges.json_bodies.tensors import from_json, to_json

NUMERIC = tuple(d for d in DATATYPES if d not in ("FP16", "BF16", "BYTES"))
SHAPES = npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


@st.composite
def numeric(draw: st.DrawFn) -> tuple[str, Array]:
    datatype = draw(st.sampled_from(NUMERIC))
    elements = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else None
    return datatype, draw(npst.arrays(DATATYPES[datatype], SHAPES, elements=elements))


@given(numeric())
def test_array_survives_json(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    data = orjson.loads(to_json("y", datatype, array))
    found = from_json(datatype, array.shape, data)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@given(numeric())
def test_nested_and_flat_are_the_same(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    nested = from_json(datatype, array.shape, array.tolist())
    flat = from_json(datatype, array.shape, array.ravel().tolist())
    assert nested.shape == flat.shape == array.shape
    assert nested.tobytes() == flat.tobytes() == array.tobytes()


@given(st.lists(st.text()))
def test_text_survives_json(texts: list[str]) -> None:
    array = object_array([text.encode() for text in texts])
    data = orjson.loads(to_json("y", "BYTES", array))
    found = from_json("BYTES", [len(texts)], data)
    assert [as_bytes(element) for element in found] == list(array)


@given(numeric(), st.integers(-2, 2).filter(bool))
def test_wrong_number_of_elements(tensor: tuple[str, Array], change: int) -> None:
    datatype, array = tensor
    flat = array.ravel().tolist()
    wrong = flat[:change] if change < 0 else flat + [0] * change
    if len(wrong) != len(flat):
        with pytest.raises(TensorError, match=f"holds {len(wrong)} elements"):
            from_json(datatype, array.shape, wrong)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=12,
)


@given(
    st.sampled_from([*DATATYPES, "FLOAT", ""]),
    st.lists(st.integers(-1, 2**63 - 1) | st.integers(0, 3), max_size=4),
    ANYTHING,
)
def test_nonsense_is_a_value_error_or_an_array_as_declared(
    datatype: str, shape: list[int], data: Any
) -> None:
    """ValueError, not only TensorError: NumPy's own refusals are put into words one level up."""
    try:
        array = from_json(datatype, shape, data)
    except ValueError:
        return
    assert list(array.shape) == shape
    assert array.dtype == DATATYPES[datatype]


@pytest.mark.parametrize(
    ("datatype", "value"),
    [(f"{kind}{bits}", value) for bits in (8, 16, 32, 64) for kind, value in (
        ("INT", 2 ** (bits - 1)), ("INT", -(2 ** (bits - 1)) - 1), ("UINT", 2**bits), ("UINT", -1)
    )] + [("FP32", 3.5e38), ("FP32", -(10**39)), ("FP64", 10**400)],
)  # fmt: skip
def test_number_outside_the_range(datatype: str, value: float) -> None:
    with pytest.raises(TensorError, match=f"outside the range of {datatype}"):
        from_json(datatype, [1], [value])


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT64", float(2**63)), ("INT64", float(2**64 - 2**12)), ("UINT64", float(2**64))],
)
def test_float_beyond_the_whole_numbers_of_a_datatype_is_outside_its_range(
    datatype: str, value: float
) -> None:
    with pytest.raises(TensorError, match=f"outside the range of {datatype}"):
        from_json(datatype, [1], [value])


@pytest.mark.parametrize(
    ("datatype", "value", "found"),
    [
        ("INT32", True, "a boolean"),
        ("INT32", 1.0, "a fraction"),
        ("INT32", "1", "a string"),
        ("UINT8", None, "null"),
        ("FP32", True, "a boolean"),
        ("FP32", "1.0", "a string"),
        ("FP64", {}, "an object"),
        ("BOOL", 1, "a number"),
        ("BOOL", "true", "a string"),
        ("BYTES", 1, "a number"),
        ("BYTES", None, "null"),
        ("BOOL", 0.5, "a fraction"),
        # What the parser makes of 2**64, of -(2**63) - 1 and of 10**30.
        ("BOOL", float(2**64), "a number"),
        ("BYTES", -float(2**63), "a number"),
        ("BOOL", 1e30, "a number"),
    ],
)
def test_value_of_another_json_type(datatype: str, value: object, found: str) -> None:
    with pytest.raises(TensorError, match=f"for {datatype}; it holds {found}"):
        from_json(datatype, [1], [value])


@pytest.mark.parametrize("data", [[[1, 2], [3]], [[1, 2], 3], [1, [2, 3]], [[[1]], [2]]])
def test_ragged_nesting(data: list[Any]) -> None:
    with pytest.raises(TensorError, match="ragged"):
        from_json("INT32", [2, 2], data)


@pytest.mark.parametrize(
    ("shape", "data"),
    [([2, 2], [[1, 2, 3, 4]]), ([4], [[1], [2], [3], [4]]), ([1, 4], [[1, 2], [3, 4]])],
)
def test_nesting_other_than_the_shape(shape: list[int], data: list[Any]) -> None:
    with pytest.raises(TensorError, match="nested as"):
        from_json("INT32", shape, data)


@pytest.mark.parametrize("data", [None, 1, 1.5, "text", True, {"0": 1}])
def test_data_that_is_no_list(data: object) -> None:
    with pytest.raises(TensorError, match="give a list"):
        from_json("INT32", [1], data)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_datatype_without_json(datatype: str) -> None:
    with pytest.raises(TensorError, match="no JSON form"):
        from_json(datatype, [1], [1])
    with pytest.raises(TensorError, match="ask for it as binary data"):
        to_json("y", datatype, np.zeros(1, DATATYPES[datatype]))


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_numbers_that_json_has_no_form_for(datatype: str) -> None:
    array = np.array([[1, np.nan, np.inf], [-np.inf, -0.5, np.nan]], DATATYPES[datatype])
    assert to_json("y", datatype, array) == b"[1.0,NaN,Infinity,-Infinity,-0.5,NaN]"


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(TensorError, match=r"not UTF-8.*binary_data"):
        to_json("y", "BYTES", object_array([b"\xff"]))
    text = to_json("y", "BYTES", object_array([b"a\x00b\x00"]))
    assert orjson.loads(text) == ["a\x00b\x00"]
