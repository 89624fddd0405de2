"""Values of Python become arrays without a change, or are refused with a reason."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.calling.input_values import MAX_FILE_BYTES, as_array
from flambeau.errors import InvalidRequestError
from flambeau.protocol.signature import TensorSpec
from flambeau.protocol.tensors import DATATYPES

INTEGERS = [name for name, dtype in DATATYPES.items() if dtype.kind in "iu" and name != "BF16"]
FLOATS = [name for name, dtype in DATATYPES.items() if dtype.kind == "f"]


def spec(datatype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name="x", datatype=datatype, shape=(-1, *shape))


@given(st.sampled_from(INTEGERS), st.lists(st.integers(-(2**65), 2**65), min_size=1))
def test_integers_are_kept_or_refused(datatype: str, numbers: list[int]) -> None:
    limits = np.iinfo(DATATYPES[datatype])  # type: ignore[type-var]
    if all(limits.min <= number <= limits.max for number in numbers):
        array = as_array(spec(datatype), numbers)
        assert (array.dtype, array.tolist()) == (DATATYPES[datatype], numbers)
        return
    beyond = next(number for number in numbers if not limits.min <= number <= limits.max)
    words = f"input 'x': {beyond} is no {datatype}; give {limits.min} to {limits.max}"
    with pytest.raises(InvalidRequestError, match=re.escape(words)):
        as_array(spec(datatype), numbers)


@given(st.sampled_from(FLOATS), st.integers(-(2**80), 2**80))
def test_integers_become_floats_only_if_they_are_one(datatype: str, number: int) -> None:
    try:
        array = as_array(spec(datatype), number)
    except InvalidRequestError:
        with np.errstate(over="ignore"):
            nearest = float(DATATYPES[datatype].type(number))
        assert math.isinf(nearest) or int(nearest) != number
    else:
        assert array.dtype == DATATYPES[datatype]
        assert int(array[0]) == number


@given(st.sampled_from(FLOATS), st.lists(st.floats(), min_size=1))
def test_fractions_are_rounded_to_the_nearest(datatype: str, numbers: list[float]) -> None:
    with np.errstate(over="ignore"):
        nearest = np.array(numbers).astype(DATATYPES[datatype])
    if (np.isinf(nearest) & np.isfinite(numbers)).any():
        with pytest.raises(InvalidRequestError, match=f"is no {datatype}; give -"):
            as_array(spec(datatype), numbers)
    else:
        np.testing.assert_array_equal(as_array(spec(datatype), numbers), nearest)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.binary(), min_size=1))
def test_text_and_bytes_keep_their_characters(elements: list[str | bytes]) -> None:
    assert as_array(spec("BYTES"), elements).tolist() == elements
    assert as_array(spec("BYTES", 1), elements).tolist() == [[each] for each in elements]


@pytest.mark.parametrize(
    ("datatype", "value", "words"),
    [
        ("INT64", [2.0], "2.0 is no INT64; give integers"),
        ("INT64", [True], "True is no INT64; give integers"),
        ("FP32", [None], "None is no FP32; give numbers"),
        ("FP32", {"a": 1}, "{'a': 1} is no FP32; give numbers"),
        ("FP32", [2**24 + 1], "FP32 cannot hold the integer 16777217 exactly; give a float"),
        ("FP64", [2**53 + 1], "FP64 cannot hold the integer 9007199254740993 exactly"),
        ("FP64", [10**400], "00 is no FP64; give -1.7976931348623157e+308 to"),
        ("BOOL", [0], "0 is no BOOL; give True or False"),
        ("BYTES", [1], "1 is no BYTES; give text, bytes or the Path of a file"),
        ("BYTES", [["a"], ["b", "c"]], "lists of different lengths are no array of BYTES"),
        ("FP32", [[1], [2, 3]], "lists of different lengths are no array of FP32"),
        ("FP32", [np.zeros(1), np.zeros(2)], "is a list of arrays of several shapes"),
        ("BF16", [1.0], "is BF16, to which no numbers are converted"),
        ("BYTES", Path("/"), "/: Is a directory"),
    ],
)
def test_other_values_are_refused(datatype: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as caught:
        as_array(spec(datatype), value)
    assert str(caught.value).startswith("input 'x'")


def test_a_list_in_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidRequestError, match="nested deeper than 64 levels"):
        as_array(spec("FP32"), endless)


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidRequestError, match=f"has more than {MAX_FILE_BYTES} bytes"):
        as_array(spec("BYTES"), large)


@pytest.mark.parametrize(
    ("shape", "value", "expected"),
    [
        ((), 7, [7]),
        ((1,), 7, [[7]]),
        ((1,), [7, 8], [[7], [8]]),
        ((2,), [7, 8], [[7, 8]]),
        ((2,), range(2), [[0, 1]]),
        ((2,), (np.int64(7), 8), [[7, 8]]),
        ((2,), [np.array([7, 8]), np.array([9, 0])], [[7, 8], [9, 0]]),
        ((2,), np.array([7, 8]), [[7, 8]]),
        ((-1,), [[7, 8, 9]], [[7, 8, 9]]),
    ],
)
def test_a_sample_is_a_batch_of_one(shape: tuple[int, ...], value: Any, expected: Any) -> None:
    assert as_array(spec("INT64", *shape), value).tolist() == expected


def test_an_array_keeps_its_datatype() -> None:
    assert as_array(spec("FP32"), np.zeros(2)).dtype == np.float64
    torch_like = type("Tensor", (), {"__array__": lambda *_, **__: np.ones(2, np.float32)})()
    assert as_array(spec("FP32"), torch_like).tolist() == [1, 1]

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("the tensor is on a GPU")

    with pytest.raises(InvalidRequestError, match="input 'x': the tensor is on a GPU"):
        as_array(spec("FP32"), type("Tensor", (), {"__array__": refuse})())
