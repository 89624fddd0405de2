"""Spreads of a version's golden answers: the scale on which answers of numbers are compared.

In: a version, and the store that has its golden rows. Out: a number by output.

The spread of an output is the root mean square distance of its golden rows from their mean row: an
offset that all answers have, such as 273 of degrees in kelvin, is no part of it. Outputs have none:
- whose datatype is no floating-point one;
- whose rows may have several sizes, or are not along the first axis;
- whose golden rows are all alike, but for rounding, or are not finite.
"""

import math
from typing import TYPE_CHECKING

from flambeau.protocol.signature import Signature, TensorSpec
from model_store.manifest import Manifest
from model_store.rollouts.traffic import MAX_SPREADS
from model_store.version_reader import VersionReader

if TYPE_CHECKING:
    from flambeau.protocol.tensors import Array

PIECE_ELEMENTS = 2**17
"""Elements of an output that are summed at a time: 1 MiB in double precision."""
ROUNDING_STEPS = 100
"""Rounding steps of the answers' size that a spread exceeds: a difference of one step between two
artifacts is then a disagreement of less than 0.5 %."""
_STEP = {"FP16": 2.0**-10, "BF16": 2.0**-7, "FP32": 2.0**-23, "FP64": 2.0**-52}
"""Relative size of a rounding step by datatype."""


def golden_spreads(store: VersionReader, version: Manifest) -> dict[str, float]:
    """Returns the spreads of a version's golden answers by output, of `MAX_SPREADS` at most.

    Raises:
        GoldenMismatchError: the golden file does not match the signature.
        StoreError: it is damaged, or out of reach.
    """
    specs = _measured(version.signature)
    if not specs:
        return {}
    from model_store.golden import read_golden  # imports NumPy, which a store's moves do not use

    answers = read_golden(store, version).outputs
    found = {spec.name: spread_of(answers[spec.name], spec.datatype) for spec in specs}
    return {name: spread for name, spread in found.items() if spread is not None}


def _measured(signature: Signature) -> list[TensorSpec]:
    """Returns the outputs that may have a spread."""
    return [spec for spec in signature.outputs if spec.datatype in _STEP and _has_rows(spec)][
        :MAX_SPREADS
    ]


def _has_rows(spec: TensorSpec) -> bool:
    """Returns True if an answer has the rows of the golden file along its first axis."""
    is_one_row = spec.batch_axis is None and spec.shape[:1] in ((), (1,))
    return -1 not in spec.row_shape and (spec.batch_axis == 0 or is_one_row)


def spread_of(answers: "Array", datatype: str) -> float | None:
    """Returns the spread of rows; None if they are alike but for rounding, or not finite.

    Args:
        answers: [rows, ...]; bit patterns of BF16.
        datatype: of the output.
    """
    import numpy as np

    from flambeau.protocol.tensors import bf16_numbers

    rows = answers.reshape(len(answers), -1)
    count, columns = rows.shape
    width = max(1, PIECE_ELEMENTS // count)
    apart = size = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, columns, width):
            piece = rows[:, start : start + width]
            piece = (bf16_numbers(piece) if datatype == "BF16" else piece).astype(np.float64)
            apart += float(((piece - piece.mean(0)) ** 2).sum())
            size += float((piece**2).sum())
    spread, length = math.sqrt(apart / count), math.sqrt(size / count)
    is_known = math.isfinite(length) and spread > ROUNDING_STEPS * _STEP[datatype] * length
    return spread if is_known else None
