"""Inputs and outputs of a version, as its description has them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a batch: inputs by name to outputs by name."""

DTYPES = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(np.object_),
}
"""NumPy's types by datatype; it has none for BF16."""


class RefusedError(ValueError):
    """A row that the version cannot take; the message has the reason."""


class Tensor(NamedTuple):
    """An input or an output."""

    name: str
    datatype: str
    shape: Sequence[int]
    """Sizes, -1 where they vary: the batch among them."""
    batch_axis: int | None = 0
    optional: bool = False

    @property
    def row_shape(self) -> list[int]:
        """The shape of one row."""
        return [size for axis, size in enumerate(self.shape) if axis != self.batch_axis]

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of its elements."""
        return DTYPES[self.datatype]

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns True if a row may have this shape."""
        wanted = self.row_shape
        return len(shape) == len(wanted) and all(
            size in (-1, given) for size, given in zip(wanted, shape, strict=True)
        )

    def row_axis(self, axis: int) -> int:
        """Returns the place of a dimension, which is not the batch, in the shape of a row."""
        return axis - (self.batch_axis is not None and axis > self.batch_axis)

    def check_sizes(
        self, row_shape: Sequence[int], axes: Mapping[str, Sequence[int | None]]
    ) -> None:
        """Checks the sizes of one row against limits by axis.

        Raises:
            RefusedError: one is beyond its limits.
        """
        for axis, (low, high) in axes.items():
            size = row_shape[self.row_axis(int(axis))]
            if size < (low or 1) or (high is not None and size > high):
                most = "more" if high is None else high
                raise RefusedError(
                    f"input '{self.name}' has size {size} along axis {axis}; give {low} to {most}"
                )
