"""Arrays of values that an inexact codec would change, for every datatype of the runtime."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

VALUES: dict[str, Array] = {
    "BOOL": np.array([[True, False, True], [False, False, True]]),
    **{
        f"{prefix}{bits}": np.array(
            [[limits.min, limits.max, 0], [1, limits.max - 1, limits.max // 3]], limits.dtype
        )
        for prefix, letter in (("INT", "i"), ("UINT", "u"))
        for bits in (8, 16, 32, 64)
        for limits in (np.iinfo(f"{letter}{bits // 8}"),)
    },
    **{
        f"FP{bits}": np.array(
            [[limits.min, limits.max, -0.0], [limits.tiny, limits.eps, 1 / 3]], limits.dtype
        )
        for bits in (16, 32, 64)
        for limits in (np.finfo(f"f{bits // 8}"),)
    },
}
"""Arrays [2, 3] by datatype."""

RUNTIME_DATATYPES = tuple(VALUES)
JSON_DATATYPES = tuple(datatype for datatype in VALUES if datatype != "FP16")
"""FP16 has no JSON form and no field in `InferTensorContents`."""

CONTENTS_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""The field of `InferTensorContents` for each datatype, as the protocol defines it."""


def echo_model(datatype: str) -> str:
    """Returns the name of the model that echoes one tensor of this datatype."""
    return f"echo-{datatype.lower()}"


def assert_same_bits(found: Array, expected: Array) -> None:
    """Asserts equality of type, shape and every bit: -0.0 is not 0.0, and NaN is itself."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
