"""Makes unpadded and padded forms of the same rows, to verify that padding changes no answer.

In: held-out rows of one common length, with the real length of each in a mask or in lengths. Out:
each row cut to its own length, and batches of those rows padded to their bucket, as a server that
follows the signature's `padding` would run them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flambeau.protocol.signature import Padding, Signature, SignatureError
from flambeau.protocol.tensors import Array

EXAMPLE_LENGTH = 4
"""Length of the example rows for exporters. More than 1, which exporters treat as a constant."""

Inputs = dict[str, Array]
Outputs = dict[str, Array]


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Rows in unpadded and padded form."""

    lengths: list[int]
    """Number of real elements of each row."""
    alone: list[Inputs]
    """Each row at its own length, [1, ...]."""
    batches: list[tuple[list[int], Inputs]]
    """Indexes of rows in `alone`, and their inputs padded to the bucket, [rows, ...]."""


def padded_rows(inputs: Mapping[str, Array], signature: Signature) -> PaddedRows:
    """Cuts and pads held-out rows.

    Args:
        inputs: by name, each [rows, ...], all of one length.
        signature: a signature with a `padding`.

    Raises:
        SignatureError: the mask or the lengths contradict the padding, or no row needs padding.
    """
    padding = signature.padding
    assert padding is not None, "only a model with padding has rows to pad"
    lengths = own_lengths(inputs, padding).tolist()
    alone = [_cut(inputs, padding, row, length) for row, length in enumerate(lengths)]
    by_bucket: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_bucket.setdefault(padding.bucket_of(length), []).append(row)
    if all(lengths[row] == bucket for bucket, rows in by_bucket.items() for row in rows):
        raise SignatureError(
            f"the padding cannot be verified: each of the {len(lengths)} golden rows fills its "
            f"bucket of {list(padding.buckets)}; put shorter rows first into the test split"
        )
    size = signature.max_batch_size
    chunks = [
        (bucket, rows[start : start + size])
        for bucket, rows in sorted(by_bucket.items())
        for start in range(0, len(rows), size)
    ]
    batches = [(rows, _join([alone[r] for r in rows], padding, b)) for b, rows in chunks]
    return PaddedRows(lengths, alone, batches)


def shortened(inputs: Mapping[str, Array], signature: Signature) -> Inputs:
    """Returns the first elements of every row, as examples for exporters.

    Exporters run a recurrent layer element by element, so their time grows with the length.

    Args:
        inputs: arrays by name, each [rows, ...]; returned unchanged without a `padding`.
        signature: the signature, whose `padding` names the length axes.
    """
    padding = signature.padding
    if padding is None:
        return dict(inputs)
    found = {
        name: np.ascontiguousarray(array[_to(EXAMPLE_LENGTH, padding.axis_of(name))])
        for name, array in inputs.items()
    }
    if padding.lengths is not None:
        found[padding.lengths] = np.minimum(inputs[padding.lengths], EXAMPLE_LENGTH)
    return found


def own_lengths(inputs: Mapping[str, Array], padding: Padding) -> npt.NDArray[np.int64]:
    """Returns the number of real elements of each row, [rows].

    The mask or the lengths contain it. For a model with neither, every prefix of a row is a valid
    row, so lengths from 1 to the full length are spread over the rows.

    Raises:
        SignatureError: a row has real elements after its padding, has no real element, or mask and
            lengths differ.
    """
    name, axis = next(iter(padding.inputs.items()))
    rows, full = inputs[name].shape[0], inputs[name].shape[axis]
    found: npt.NDArray[np.int64] = 1 + np.arange(rows, dtype=np.int64) * full // rows
    if padding.lengths is not None:
        found = inputs[padding.lengths].astype(np.int64)
    if padding.mask is not None:
        mask = inputs[padding.mask].astype(np.float64)
        counted = (mask == 1).sum(axis=1, dtype=np.int64)
        right = np.arange(full) < counted[:, None]
        if not (mask == right).all():
            row = int(np.flatnonzero((mask != right).any(axis=1))[0])
            raise SignatureError(
                f"row {row} of '{padding.mask}' is not ones followed by zeros; padding comes last"
            )
        if padding.lengths is not None and not (found == counted).all():
            row = int(np.flatnonzero(found != counted)[0])
            raise SignatureError(
                f"row {row} has {counted[row]} ones in '{padding.mask}' and "
                f"'{padding.lengths}' says {found[row]}; make them agree"
            )
        found = counted
    if found.min() < 1 or found.max() > full:
        raise SignatureError(f"a row has length {found.min()}..{found.max()}; give 1 to {full}")
    return found


def cut_back(
    outputs: Mapping[str, Array], lengths: Sequence[int], padding: Padding
) -> list[Outputs]:
    """Cuts the outputs of a padded batch to those of each row alone, [1, ...].

    Args:
        outputs: arrays by name, each [rows, ...].
        lengths: lengths of the rows before padding.
        padding: the padding, which names the outputs that vary with the length, and their axes.
    """
    return [
        {
            name: array[row : row + 1][_to(length, padding.outputs.get(name))]
            for name, array in outputs.items()
        }
        for row, length in enumerate(lengths)
    ]


def _cut(inputs: Mapping[str, Array], padding: Padding, row: int, length: int) -> Inputs:
    cut = {}
    for name, array in inputs.items():
        own = array[row : row + 1][_to(length, padding.axis_of(name))]
        cut[name] = np.ascontiguousarray(own)
    return cut


def _join(rows: Sequence[Inputs], padding: Padding, bucket: int) -> Inputs:
    """Pads each row to the bucket, and joins them."""
    joined = {}
    for name in rows[0]:
        axis, parts = padding.axis_of(name), [row[name] for row in rows]
        if axis is not None:
            value = 0 if name == padding.mask else padding.values.get(name, 0)
            parts = [_pad(part, axis, bucket, value) for part in parts]
        joined[name] = np.concatenate(parts)
    return joined


def _pad(array: Array, axis: int, length: int, value: float) -> Array:
    shape = list(array.shape)
    shape[axis] = length
    whole = np.full(shape, value, array.dtype)
    whole[_to(array.shape[axis], axis)] = array
    return whole


def _to(length: int, axis: int | None) -> tuple[slice, ...]:
    """Selects the first elements along one axis; all elements if `axis` is None."""
    return () if axis is None else (*(slice(None),) * axis, slice(length))
