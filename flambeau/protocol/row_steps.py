"""Makes rows the steps of one sequence, by running a model with states on each in turn.

Publishing does, with the model as it was brought; artifacts are compared with what it gave.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.row_form import Run
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.tensors import Array


def in_steps(run: Run, inputs: Mapping[str, Array], sequences: Sequences) -> dict[str, Array]:
    """Returns rows as the steps of one sequence, in their order.

    States become those that the model has there, and controls say what kind of step it is. Rows of
    a model that keeps its state itself stay as they are: their controls are the caller's to choose.

    Args:
        run: the reference, on rows (`protocol.row_form.in_rows`).
        inputs: all inputs by name, [rows, ...].
        sequences: of the model; each of its inputs is among `inputs`.
    """
    given = dict(inputs)
    if not sequences.states:
        return given
    rows = len(next(iter(inputs.values())))
    for control, places in (
        (sequences.start, [0]), (sequences.end, [rows - 1]), (sequences.ready, [*range(rows)]),
    ):  # fmt: skip
        if control is not None:
            given[control.input] = np.full_like(inputs[control.input], control.false)
            given[control.input][places] = control.true
    before: dict[str, Array] = {}
    for name, state in sequences.states.items():
        given[name], before[name] = np.array(inputs[name]), np.empty_like(inputs[name][:1])
        before[name].reshape(-1)[...] = state.initial
    for row in range(rows):
        for name, value in before.items():
            given[name][row] = value[0]
        found = run({name: array[row : row + 1] for name, array in given.items()})
        before = {name: found[state.output] for name, state in sequences.states.items()}
    return given


def first_steps(inputs: Mapping[str, Array], sequences: Sequences) -> dict[str, Array]:
    """Returns rows that are each the first step of a sequence, by their controls.

    Args:
        inputs: all inputs by name, [rows, ...].
        sequences: of the model; each of its inputs is among `inputs`.
    """
    given = dict(inputs)
    for control, is_true in (
        (sequences.start, True), (sequences.ready, True), (sequences.end, False),
    ):  # fmt: skip
        if control is not None:
            value = control.true if is_true else control.false
            given[control.input] = np.full_like(inputs[control.input], value)
    return given
