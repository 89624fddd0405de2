"""Chooses the gates of a model that was brought: by what its reference outputs look like. No torch.

In: the reference's outputs, an entry of `export` with its limits, and the gates that the user gave.
Out: a tolerance with a gate for every output.

| output                                   | gate                                                  |
|------------------------------------------|-------------------------------------------------------|
| whole numbers, booleans, text            | equal                                                 |
| classes (named, or labels are given)     | same top class, and differences by the spread         |
| probabilities (rows that sum to 1)       | same top class, and the shift of a probability        |
| vectors of length 1                      | cosine                                                |
| other numbers                            | a share of the spread, and of the number itself       |
"""

from collections.abc import Collection, Mapping

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.arrays.measures import Numbers, edit_distance, equal_share, max_abs_difference
from model_store.gate_figures import GateFigure
from model_store.gates import Gate, OwnGate
from model_store.tolerance import Tolerance
from training.errors import TargetError
from training.loading.label_arrays import LEAST_SPREAD
from training.recipe.parts.export_entries import ExportTolerance, Fp32Tolerance
from training.recipe.targets import call_named, load_target

RELATIVE_SHARE = 0.1
"""Share of a number itself, for each share of the spread (`max_spread_share`): numbers far from 0
are rounded by a share of themselves."""
UNIT_ERROR = 1e-3
"""Largest error of a length, or a sum, that still counts as 1."""
HEADROOM = 2.0
"""Limit of an output with an own function, by its measured difference: another processor rounds
otherwise, and a server cannot ask the function."""


def default_gates(
    outputs: Mapping[str, Array], limits: ExportTolerance, classes: Collection[str] = ()
) -> dict[str, Gate]:
    """Returns a gate for every output.

    Args:
        outputs: the reference's outputs by name, each [rows, ...].
        limits: limits of the artifact's kind and precision.
        classes: outputs whose last axis is known to be classes.
    """
    return {name: _default(array, limits, name in classes) for name, array in outputs.items()}


def _default(right: Array, limits: ExportTolerance, has_classes: bool) -> Gate:
    if right.dtype.kind != "f" or right.size == 0:
        return Gate(exact=1.0)
    numbers = right.astype(np.float64)
    several = right.ndim > 1 and right.shape[-1] > 1
    if several and _are_probabilities(numbers):
        return Gate(top1=limits.min_agreement, absolute=limits.max_probability_shift)
    if several and _have_length_1(numbers) and not has_classes:
        return Gate(cosine=limits.min_cosine)
    share = limits.max_spread_share
    return Gate(
        top1=limits.min_agreement if several and has_classes else None,
        absolute=share * spread_of(numbers),
        relative=min(share * RELATIVE_SHARE, 1.0),
    )


def spread_of(numbers: Array) -> float:
    """Returns the standard deviation of an output, at least `LEAST_SPREAD` of its size.

    Args:
        numbers: all elements; those that are not finite do not count.
    """
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    largest = float(np.abs(finite).max(initial=0.0))
    if largest == 0.0:
        return 1.0
    scaled = finite / largest  # no square overflows
    size = float(np.sqrt((scaled**2).mean()))
    spread = float(scaled.std())
    return largest * max(spread, LEAST_SPREAD * size)


def _are_probabilities(numbers: Numbers) -> bool:
    sums = numbers.sum(axis=-1)
    fits = (numbers >= 0).all() and (np.abs(sums - 1) <= UNIT_ERROR).all()
    return bool(fits)


def _have_length_1(numbers: Numbers) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt((numbers**2).sum(axis=-1))
    return bool((np.abs(lengths - 1) <= UNIT_ERROR).all())


def gated_tolerance(gates: Mapping[str, Gate]) -> Tolerance:
    """Returns a tolerance in which every output has a gate, so that nothing else is compared."""
    return Tolerance(
        max_abs_difference=0.0,
        min_agreement=1.0,
        max_probability_shift=0.0,
        gates=dict(gates),
    )


def judged_by_function(
    name: str, gate: OwnGate, expected: Array, found: Array
) -> tuple[Gate, GateFigure]:
    """Asks the user's function about an output.

    Args:
        name: name of the output.
        gate: the function, and the smallest agreement.
        expected: the reference's output for all examples.
        found: the artifact's output for them.

    Returns:
        The numeric gate that servers replay: `HEADROOM` times the measured difference, and for
        numbers FP32's limit more; and the agreement by the function.

    Raises:
        TargetError: the function does not exist, raises, or returns no agreement.
    """
    key = f"gates of '{name}'"
    function = load_target(gate.function, key)
    told = call_named(function, f"{key}: {gate.function}", expected, found)
    try:
        agreement = float(told)
    except (TypeError, ValueError):
        agreement = float("nan")
    if not 0 <= agreement <= 1:
        raise TargetError(
            f"{key}: {gate.function} returned {told!r:.80}; return True, False, or the agreement "
            "from 0 to 1"
        )
    figure = GateFigure(name, "function", agreement, gate.min)
    return _measured_gate(expected, found), figure


def _measured_gate(expected: Array, found: Array) -> Gate:
    if expected.shape != found.shape:  # the comparison of shapes refuses it
        return Gate(exact=1.0)
    if expected.dtype.kind == "f":
        measured = max_abs_difference(expected, found)
        limit = Fp32Tolerance().max_spread_share * spread_of(expected)
        return Gate(absolute=limit + (HEADROOM * measured if np.isfinite(measured) else 0.0))
    if expected.dtype.kind in "iub":
        return Gate(exact=max(1 - HEADROOM * (1 - equal_share(expected, found)), 0.0))
    return Gate(edit_distance=min(HEADROOM * edit_distance(expected, found), 1.0))
