"""Finds out if a network's output for a row depends on the batch's other rows. No torch.

In: the checkpoint's outputs for some rows in one batch, and for each of them alone. Out: the row
that differs most, or nothing.

No artifact of such a network keeps its tolerance in batches of every size, and no tolerance would
help: a server makes batches of any requests that arrive.
"""

from collections.abc import Callable, Mapping

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.arrays.parity import Parity, compare_rows
from model_store.tolerance import Tolerance

ROWS = 8
"""Golden rows that are run alone."""
ROUNDING_SHARE = 1e-4
"""Share of the largest output: a smaller difference is FP32 rounding in another batch size."""
ADVICE = "let forward compute each row by itself, as without a mean over the rows of the batch"

Run = Callable[[dict[str, Array]], dict[str, Array]]


def rows_alone(run: Run, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs of the first rows, each run in its own batch, [`ROWS`, ...].

    Args:
        run: the checkpoint.
        inputs: by name, each [rows, ...].
    """
    rows = min(ROWS, len(next(iter(inputs.values()))))
    parts = [run({n: a[row : row + 1] for n, a in inputs.items()}) for row in range(rows)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def depends_on_others(
    together: Mapping[str, Array],
    alone: Mapping[str, Array],
    tolerance: Tolerance,
) -> str | None:
    """Returns a message with the row whose output depends on others; None if none does.

    Args:
        together: outputs of the checkpoint for all rows in one batch.
        alone: outputs of `rows_alone`; empty if they were not measured.
        tolerance: smaller differences are ignored.
    """
    if not alone:
        return None
    rows = len(next(iter(alone.values())))
    right = {name: array[:rows] for name, array in together.items()}
    found = compare_rows("in a batch of its own", right, alone, tolerance.single_gates)
    broken = found.failure(tolerance)
    if broken is None or (not tolerance.single_gates and _is_rounding(found.parity, right)):
        return None
    return (
        "the trained network's own answer to a row depends on the other rows of its batch "
        f"({broken})"
    )


def _is_rounding(parity: Parity, right: Mapping[str, Array]) -> bool:
    """Returns True for differences as small as those of another batch size."""
    largest = max((float(np.abs(array).max(initial=0)) for array in right.values()), default=0.0)
    return parity.max_abs_difference <= ROUNDING_SHARE * largest
