"""Replays golden rows as the steps of a sequence: the artifact gets its own states back.

In: rows that the reference made (`flambeau.protocol.row_steps`). Out: the difference of an artifact
that runs them in order. Pure NumPy.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.rounding import gap
from flambeau.protocol.row_form import Run
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.arrays.parity import Comparison, compare_rows
from model_store.gates import Gate
from model_store.golden import GoldenRows
from model_store.tolerance import NO_GATES

STEPS = 32
"""Golden rows that are replayed step by step, one run each."""
ROUNDING_SHARE = 1e-3
"""Share of the largest number of a state: rows whose states differ by less belong together."""


def replay_in_steps(
    run: Run, golden: GoldenRows, signature: Signature, gates: Mapping[str, Gate] = NO_GATES
) -> list[Comparison]:
    """Runs the golden rows in order, and gives each the states that the row before it gave.

    A row whose golden states are not those that the row before left begins another sequence.

    Args:
        run: runner of the artifact, on rows.
        golden: inputs to run, and expected outputs.
        signature: with all tensors of the artifact.
        gates: limits of the outputs that are judged by themselves.

    Returns:
        One comparison; none for a model without states.
    """
    if signature.sequence is None or not signature.sequence.states:
        return []
    states = {name: state.output for name, state in signature.sequence.states.items()}
    rows = min(STEPS, golden.rows)
    found: list[dict[str, Array]] = []
    for row in range(rows):
        given = {name: array[row : row + 1] for name, array in golden.inputs.items()}
        if row and all(
            gap(given[name], golden.outputs[output][row - 1 : row], ROUNDING_SHARE) is None
            for name, output in states.items()
        ):
            given |= {name: found[-1][output] for name, output in states.items()}
        found.append(run(given))
    joined = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    right = {name: array[:rows] for name, array in golden.outputs.items()}
    return [compare_rows("golden rows step by step", right, joined, gates)]
