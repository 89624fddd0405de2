"""Makes the rows of an example the steps of one sequence, by running the caller's model on each.

In: a model with states, and an example with all of its inputs. Out: the same example with the
states that the model has at each step, from which every artifact is verified.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from flambeau.protocol.row_form import from_rows, to_rows
from flambeau.protocol.row_steps import in_steps
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensor_spec import TensorSpec
from flambeau.protocol.tensors import Array, datatype_of
from flambeau.publishing.batch_axes import BatchAxes, row_count
from flambeau.publishing.errors import PublishError

Run = Callable[[Sequence[Mapping[str, Tensor]]], tuple[dict[str, Array], dict[str, Array]]]
"""Runs examples; returns their inputs and outputs as rows."""


def stepped(
    run: Run, example: Mapping[str, Tensor], axes: BatchAxes, sequence: Sequences
) -> dict[str, Tensor]:
    """Returns an example whose rows are the steps of one sequence.

    Args:
        run: the model.
        example: inputs by name, in the model's form.
        axes: its batch axes.
        sequence: its declaration.

    Raises:
        PublishError: the model or the example lacks a tensor that the declaration names.
    """
    for names, known, what in (
        (sequence.inputs, axes.inputs, "input"),
        (sequence.outputs, axes.outputs, "output"),
    ):
        for name in names:
            if name not in known:
                raise PublishError(
                    f"sequence names {what} '{name}', which the model or its examples do not have"
                    f"{nearest_name(name, known)}"
                )
    arrays = {name: tensor.numpy() for name, tensor in example.items()}
    specs = [
        TensorSpec(
            name=name,
            datatype=datatype_of(array),
            shape=tuple(-1 if a == axes.inputs[name] else n for a, n in enumerate(array.shape)),
            batch_axis=axes.inputs[name],
        )
        for name, array in arrays.items()
    ]

    def run_rows(rows: Mapping[str, Array]) -> dict[str, Array]:
        return run([_tensors(from_rows(rows, specs))])[1]

    rows = to_rows(arrays, specs, row_count(example, axes.inputs))
    return _tensors(from_rows(in_steps(run_rows, rows, sequence), specs))


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}
