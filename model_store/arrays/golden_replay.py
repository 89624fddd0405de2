"""Replays golden rows through an artifact, in every form that requests may have. Pure NumPy.

In: a function that runs rows, the golden rows and the signature. Out: for each form the difference
between the outputs and the checkpoint's. Training replays before it publishes, a server whenever it
loads, and `flambeau verify` for a certificate.

The forms are: batches of several sizes; each row alone at its own length, and padded in a batch;
the steps of a sequence; other sizes. Training knows the checkpoint's outputs for all of them. A
server knows those of the golden rows alone: at other sizes, and without them at other lengths, it
compares a batch with its own rows alone.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from flambeau.protocol.row_form import Run, value_bytes
from flambeau.protocol.signature import Padding, Signature, SignatureError
from flambeau.protocol.tensors import Array
from model_store.arrays.padded_rows import PaddedRows, cut_back, padded_rows
from model_store.arrays.parity import (
    Comparison,
    Parity,
    compare,
    compare_rows,
    over_rows,
    without_classes,
)
from model_store.arrays.sequence_replay import replay_in_steps
from model_store.arrays.sized_rows import at_other_sizes
from model_store.gates import Gate
from model_store.golden import GoldenRows
from model_store.tolerance import NO_GATES

BATCH_SIZES = (1, 2, 7, 32)
"""A single row, the smallest batch, a batch that is no power of two, and a large one; the maximum
batch size is added."""
SIZED_ROWS = 8
"""Rows of each comparison at another size."""

Inputs = Mapping[str, Array]
Outputs = Mapping[str, Array]


def replay_everything(
    run: Run, golden: GoldenRows, signature: Signature, gates: Mapping[str, Gate] = NO_GATES
) -> list[Comparison]:
    """Makes every comparison that the golden rows allow.

    Args:
        run: runner of the artifact, on rows (`protocol.row_form.in_rows`).
        golden: inputs to run, and expected outputs.
        signature: batches, lengths and sizes that requests may have.
        gates: limits of the outputs that are judged by themselves.
    """
    found = replay_in_batches(run, golden, signature.max_batch_size, gates)
    padding = signature.padding
    if padding is not None:
        try:
            rows = padded_rows(golden.inputs, signature)
        except SignatureError:  # every golden row fills its bucket: nothing is padded
            pass
        else:
            # Otherwise the golden rows have their full length, and shorter ones no expected output.
            knows_lengths = padding.mask is not None or padding.lengths is not None
            right = cut_back(golden.outputs, rows.lengths, padding) if knows_lengths else None
            found += replay_padded(run, rows, padding, right, gates)
    found += replay_in_steps(run, golden, signature, gates)
    sized = sized_inputs(golden.inputs, signature)
    return found + replay_sized(run, ((inputs, None) for inputs in sized), gates)


def replay_once(
    where: str,
    run: Run,
    golden: GoldenRows,
    max_batch_size: int,
    gates: Mapping[str, Gate] = NO_GATES,
) -> Comparison:
    """Runs one golden row alone, and all of them in full batches, and compares the outputs.

    Args:
        where: description of the rows.
        run: runner of the artifact.
        golden: inputs to run, and expected outputs.
        max_batch_size: most rows to run at once.
        gates: limits of the outputs that are judged by themselves.
    """
    alone = run({name: array[:1] for name, array in golden.inputs.items()})
    found = run_in_batches(run, golden.inputs, max_batch_size)
    # The row alone comes last, so that the others keep their numbers in a message.
    joined = {name: np.concatenate([array, alone[name]]) for name, array in found.items()}
    right = {name: np.concatenate([array, array[:1]]) for name, array in golden.outputs.items()}
    return compare_rows(where, right, joined, gates)


def replay_in_batches(
    run: Run, golden: GoldenRows, max_batch_size: int, gates: Mapping[str, Gate] = NO_GATES
) -> list[Comparison]:
    """Compares the golden rows at each of `BATCH_SIZES`, and at the largest batch size."""
    sizes = {*BATCH_SIZES, min(max_batch_size, golden.rows)}
    return [
        compare_rows(
            f"golden rows in batches of {size}",
            golden.outputs,
            run_in_batches(run, golden.inputs, size),
            gates,
        )
        for size in sorted(sizes)
        if size <= max_batch_size
    ]


def replay_padded(
    run: Run,
    rows: PaddedRows,
    padding: Padding,
    right: Sequence[Outputs] | None,
    gates: Mapping[str, Gate] = NO_GATES,
) -> list[Comparison]:
    """Compares each row alone at its own length, and padded to its bucket in a batch.

    Args:
        run: runner of the artifact.
        rows: the rows in both forms.
        padding: padding of the signature.
        right: expected outputs of each row alone, [1, ...]; None to compare the batches with the
            artifact's own outputs.
        gates: limits of the outputs that are judged by themselves.
    """
    alone: Sequence[Outputs] = [run(inputs) for inputs in rows.alone]
    found: list[Comparison] = []
    if right is not None:
        parity = _of_single_rows(list(zip(right, alone, strict=True)), gates)
        found.append(Comparison("golden rows alone at their own length", parity))
    right = alone if right is None else right
    pairs: list[tuple[Outputs, Outputs]] = []
    for numbers, inputs in rows.batches:
        lengths = [rows.lengths[row] for row in numbers]
        batch = cut_back(run(inputs), lengths, padding)
        pairs += zip([right[row] for row in numbers], batch, strict=True)
    return [*found, Comparison("golden rows padded in a batch", _of_single_rows(pairs, gates))]


def replay_sized(
    run: Run, sized: Iterable[tuple[Inputs, Outputs | None]], gates: Mapping[str, Gate] = NO_GATES
) -> list[Comparison]:
    """Compares rows at other sizes.

    Args:
        run: runner of the artifact.
        sized: inputs at other sizes, and the expected outputs; None to compare the batch with the
            artifact's own outputs for each row alone.
        gates: limits of the outputs that are judged by themselves.
    """
    found = []
    for inputs, right in sized:
        alone = run_in_batches(run, inputs, 1) if right is None else right
        # Rows that were cut or repeated may be meaningless: agreement of their classes says little.
        parity = without_classes(compare(alone, run(inputs), gates))
        shapes = ", ".join(str(list(array.shape)) for array in inputs.values())
        where = f"golden rows at another size, {shapes}{', beside each alone' * (right is None)}"
        found.append(Comparison(where, parity))
    return found


def sized_inputs(inputs: Inputs, signature: Signature) -> list[dict[str, Array]]:
    """Returns some golden rows at the other sizes that the signature allows."""
    rows = min(SIZED_ROWS, signature.max_batch_size)
    some = {name: array[:rows] for name, array in inputs.items()}
    return at_other_sizes(some, signature.in_rows())


def run_in_batches(run: Run, inputs: Inputs, size: int) -> dict[str, Array]:
    """Runs all rows, at most `size` at once, and concatenates the outputs."""
    rows = len(next(iter(inputs.values())))
    parts = [
        run({name: array[start : start + size] for name, array in inputs.items()})
        for start in range(0, rows, size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def gives_the_same_twice(run: Run, golden: GoldenRows, max_batch_size: int) -> bool:
    """Returns True if two runs of the same rows give identical bits."""
    inputs = {name: array[:max_batch_size] for name, array in golden.inputs.items()}
    first, second = run(inputs), run(inputs)
    return all(value_bytes(first[name]) == value_bytes(second[name]) for name in first)


def _of_single_rows(pairs: Sequence[tuple[Outputs, Outputs]], gates: Mapping[str, Gate]) -> Parity:
    return over_rows([compare(right, other, gates) for right, other in pairs])
