"""Raw bytes and arrays: every datatype both ways, and nothing malformed gets through."""

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flambeau.protocol.datatypes import DATATYPE_NAMES
from flambeau.protocol.tensors import (
    DATATYPES,
    MAX_RANK,
    Array,
    TensorError,
    as_bytes,
    bytes_elements_in_slices,
    datatype_of,
    decode_bytes_elements,
    decode_raw,
    element_count,
    encode_raw,
    object_array,
    raw_view,
)

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
FIXED_SIZE = sorted(set(DATATYPES) - {"BYTES"})
INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]


def arrays(datatype: str) -> st.SearchStrategy[Array]:
    dtype = DATATYPES[datatype]
    return hnp.arrays(dtype, SHAPES, elements=hnp.from_dtype(dtype))


def test_every_named_datatype_has_a_type_of_numpy() -> None:
    assert tuple(DATATYPES) == DATATYPE_NAMES


@pytest.mark.parametrize("datatype", FIXED_SIZE)
def test_every_datatype_round_trips_bit_for_bit(datatype: str) -> None:
    @given(arrays(datatype))
    def round_trip(array: Array) -> None:
        raw = encode_raw(datatype, array)
        found = decode_raw(datatype, array.shape, raw)
        assert found.dtype == DATATYPES[datatype]
        assert found.shape == array.shape
        assert found.tobytes() == array.tobytes()  # bytes, because NaN differs from itself

    round_trip()


@pytest.mark.parametrize("datatype", FIXED_SIZE)
def test_raw_view_is_the_raw_bytes(datatype: str) -> None:
    dtype = DATATYPES[datatype]

    @given(hnp.arrays(dtype, hnp.array_shapes(min_dims=0), elements=hnp.from_dtype(dtype)))
    def same(array: Array) -> None:
        view = raw_view(datatype, array.T)
        assert (view.format, view.ndim) == ("B", 1)
        assert view == encode_raw(datatype, array.T)

    same()


@given(st.lists(st.binary(max_size=20), max_size=12))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    array = object_array(elements)
    found = decode_raw("BYTES", array.shape, encode_raw("BYTES", array))
    assert found.tolist() == elements


@pytest.mark.parametrize("element", [b"", b"\x00", b"a\x00\x00", b"\xff\xfe", b"\xc3\x28"])
def test_nul_and_bytes_that_are_not_text_survive(element: bytes) -> None:
    raw = encode_raw("BYTES", object_array([element, element]))
    assert decode_raw("BYTES", [2, 1], raw).tolist() == [[element], [element]]


@pytest.mark.parametrize(("size", "count"), [(3, 9000), (5000, 400), (2**20, 2), (3 * 2**20, 1)])
def test_bytes_are_copied_in_slices(size: int, count: int) -> None:
    raw = encode_raw("BYTES", object_array([bytes([i % 256]) * size for i in range(count)]))
    found: list[Array] = []

    def read() -> Iterator[None]:
        found.append((yield from bytes_elements_in_slices(raw, count)))

    steps = sum(1 for _ in read())
    assert encode_raw("BYTES", found[0]) == raw
    assert steps >= max(count // 2048, len(raw) // 2**19)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integer_extremes_are_little_endian(datatype: str) -> None:
    info = np.iinfo(DATATYPES[datatype].name)
    raw = encode_raw(datatype, np.array([info.min, info.max], DATATYPES[datatype]))
    signed, size = info.min < 0, info.bits // 8
    assert raw == int(info.min).to_bytes(size, "little", signed=signed) + int(info.max).to_bytes(
        size, "little", signed=signed
    )
    assert decode_raw(datatype, [2], raw).tolist() == [info.min, info.max]


def test_nan_infinity_and_negative_zero_keep_their_bits() -> None:
    raw = struct.pack("<4f", np.nan, np.inf, -np.inf, -0.0)
    array = decode_raw("FP32", [4], raw)
    assert np.isnan(array[0])
    assert np.signbit(array[3])
    assert encode_raw("FP32", array) == raw


def test_raw_is_row_major_whatever_the_memory_order() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3))
    assert encode_raw("INT8", array) == bytes(range(6))
    assert encode_raw("BYTES", np.array([["a", "b"], ["c", "d"]]).T) == b"".join(
        b"\x01\0\0\0" + letter for letter in (b"a", b"c", b"b", b"d")
    )


def test_decoding_views_the_buffer() -> None:
    buffer = bytearray(4)
    array = decode_raw("UINT8", [4], memoryview(buffer))
    buffer[0] = 7
    assert array[0] == 7


@pytest.mark.parametrize("datatype", FIXED_SIZE)
@pytest.mark.parametrize("extra", [-1, 1])
def test_a_byte_too_few_or_too_many_is_refused(datatype: str, extra: int) -> None:
    size = 3 * DATATYPES[datatype].itemsize
    with pytest.raises(TensorError, match=f"{size + extra} bytes .* takes {size}"):
        decode_raw(datatype, [3, 1], bytes(size + extra))


@pytest.mark.parametrize("octet", [2, 255])
def test_a_bool_other_than_0_and_1_is_refused(octet: int) -> None:
    with pytest.raises(TensorError, match=f"byte {octet}; it must be 0 or 1"):
        decode_raw("BOOL", [2], bytes([1, octet]))


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"\x01\x00\x00", 1, "ends inside the length of element 0"),
        (b"\x01\x00\x00\x00a\x05\x00\x00\x00abc", 2, "element 1 claims 5 bytes; 3 are left"),
        (b"\xff\xff\xff\xff", 1, "element 0 claims 4294967295 bytes; 0 are left"),
        (b"\x00\x00\x00\x00", 2, "holds 1 elements; its shape takes 2"),
        (b"\x00\x00\x00\x00" * 3, 1, "holds more than 1 elements; its shape takes 1"),
        (b"\x00\x00\x00\x00" * 2, 1, "holds 2 elements; its shape takes 1"),
        (b"", 1, "holds 0 elements"),
        (b"\x00", 0, "ends inside the length"),
    ],
)
def test_malformed_bytes_say_where(data: bytes, count: int, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        decode_bytes_elements(data, count)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_raw_bytes_decode_to_exactly_themselves_or_are_refused(data: bytes, count: int) -> None:
    try:
        array = decode_raw("BYTES", [count], data)
    except TensorError:
        return
    assert encode_raw("BYTES", array) == data


@given(
    st.sampled_from([*DATATYPES, "FP31"]),
    st.lists(st.sampled_from([-1, 0, 1, 3, 2**31, 2**62, 2**64]), max_size=MAX_RANK + 2),
    st.binary(max_size=9),
)
def test_any_shape_is_decoded_or_refused(datatype: str, shape: list[int], data: bytes) -> None:
    try:
        array = decode_raw(datatype, shape, data)
    except TensorError:
        return
    assert list(array.shape) == shape


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([2, -1], "negative dimension"),
        ([1] * 65, "65 dimensions; give at most 64"),
        ([0, 2**40, 2**40], "larger than any array"),
        ([2**40, 2**40], "larger than any array"),
    ],
)
def test_impossible_shapes(shape: Sequence[int], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        element_count(shape)


def test_unknown_datatype_lists_those_known() -> None:
    with pytest.raises(TensorError, match=r"'FP31' is unknown; use one of BOOL, .*BYTES"):
        decode_raw("FP31", [1], b"1234")


@pytest.mark.parametrize("datatype", [name for name in FIXED_SIZE if name != "BF16"])
def test_datatype_of_every_numpy_type(datatype: str) -> None:
    assert datatype_of(np.zeros(1, DATATYPES[datatype])) == datatype


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([b"a"]), object_array([b"a"])])
def test_datatype_of_text_is_bytes(array: Array) -> None:
    assert datatype_of(array) == "BYTES"


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", ">i4"])
def test_datatype_of_other_types_is_refused(dtype: str) -> None:
    with pytest.raises(TensorError, match="no datatype in the protocol"):
        datatype_of(np.zeros(1, dtype))


@pytest.mark.parametrize(
    ("element", "message"),
    [(1, "is a int"), (None, "is a NoneType"), ("\ud800", "not text that UTF-8 can hold")],
)
def test_elements_that_are_not_bytes(element: object, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        as_bytes(element)


@pytest.mark.parametrize("make", [str, np.str_])
def test_text_becomes_utf8(make: Callable[[str], str]) -> None:
    assert as_bytes(make("é")) == b"\xc3\xa9"
