"""Replays golden rows through a backend in every form that requests may have.

In: a function that runs rows, the golden rows and the signature. Out: for each form the difference
between the outputs and the checkpoint's.

The forms are those in which artifacts are verified when they are published, as far as the golden
rows have an expected output: in batches of several sizes; each row alone at its own length, and
padded in a batch; at other sizes, where a batch must give the same outputs as its rows alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from model_store.arrays.padded_rows import cut_back, padded_rows
from model_store.arrays.parity import Comparison, Parity, compare, compare_rows, worst
from model_store.arrays.sized_rows import at_other_sizes
from model_store.certificates.certificate import ReplayResult
from model_store.golden import GoldenRows
from model_store.signature import Signature, SignatureError
from model_store.tensors import Array

BATCH_SIZES = (1, 2, 7, 32)
"""A single row, the smallest batch, a batch that is no power of two, and a large one; the maximum
batch size is added."""
SIZED_ROWS = 8
"""Rows of each comparison at another size."""

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
Outputs = Mapping[str, Array]


def replay_everything(
    run: Run, golden: GoldenRows, signature: Signature, embeddings: Collection[str] = ()
) -> list[Comparison]:
    """Makes every comparison that the golden rows allow.

    Args:
        run: runner of a batch: every input, [rows, ...], to every output.
        golden: inputs to run, and expected outputs.
        signature: batches, lengths and sizes that requests may have.
        embeddings: outputs that are compared by cosine similarity.
    """
    return [
        *_in_batches(run, golden, signature.max_batch_size, embeddings),
        *_padded(run, golden, signature, embeddings),
        *_at_other_sizes(run, golden, signature, embeddings),
    ]


def run_in_batches(run: Run, inputs: Mapping[str, Array], size: int) -> dict[str, Array]:
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
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


def replay_result(found: Comparison, with_embeddings: bool = False) -> ReplayResult:
    """Converts a comparison for a certificate, which is JSON and has no infinity."""
    parity, difference = found.parity, found.parity.max_abs_difference
    return ReplayResult(
        where=found.where,
        max_abs_difference=difference if np.isfinite(difference) else None,
        agreement=parity.agreement,
        max_probability_shift=parity.max_probability_shift,
        cosine=parity.cosine if with_embeddings else None,
    )


def _in_batches(
    run: Run, golden: GoldenRows, max_batch_size: int, embeddings: Collection[str]
) -> list[Comparison]:
    sizes = {*BATCH_SIZES, min(max_batch_size, golden.rows)}
    return [
        compare_rows(
            f"golden rows in batches of {size}",
            golden.outputs,
            run_in_batches(run, golden.inputs, size),
            embeddings,
        )
        for size in sorted(sizes)
        if size <= max_batch_size
    ]


def _padded(
    run: Run, golden: GoldenRows, signature: Signature, embeddings: Collection[str]
) -> list[Comparison]:
    """Compares each row alone at its own length, and padded to its bucket in a batch."""
    padding = signature.padding
    if padding is None:
        return []
    try:
        rows = padded_rows(golden.inputs, signature)
    except SignatureError:  # every golden row fills its bucket: nothing is padded
        return []
    alone: Sequence[Outputs] = [run(inputs) for inputs in rows.alone]
    found: list[Comparison] = []
    right = alone
    if padding.mask is not None or padding.lengths is not None:
        # Otherwise the golden rows have their full length, and shorter ones no expected output.
        right = cut_back(golden.outputs, rows.lengths, padding)
        parity = _of_single_rows(list(zip(right, alone, strict=True)), embeddings)
        found.append(Comparison("golden rows alone at their own length", parity))
    pairs: list[tuple[Outputs, Outputs]] = []
    for numbers, inputs in rows.batches:
        lengths = [rows.lengths[row] for row in numbers]
        batch = cut_back(run(inputs), lengths, padding)
        pairs += zip([right[row] for row in numbers], batch, strict=True)
    among = _of_single_rows(pairs, embeddings)
    return [*found, Comparison("golden rows padded in a batch", among)]


def _at_other_sizes(
    run: Run, golden: GoldenRows, signature: Signature, embeddings: Collection[str]
) -> list[Comparison]:
    rows = min(SIZED_ROWS, signature.max_batch_size)
    few = {name: array[:rows] for name, array in golden.inputs.items()}
    found = []
    for inputs in at_other_sizes(few, signature):
        # Rows that were cut or repeated may be meaningless: agreement of their classes says little.
        alone = run_in_batches(run, inputs, 1)
        parity = replace(compare(alone, run(inputs), embeddings), agreement=1.0)
        shapes = ", ".join(str(list(array.shape)) for array in inputs.values())
        where = f"golden rows at another size, {shapes}, beside each alone"
        found.append(Comparison(where, parity))
    return found


def _of_single_rows(
    pairs: Sequence[tuple[Outputs, Outputs]], embeddings: Collection[str]
) -> Parity:
    """Returns the parity of single rows: the largest differences, and the share that agrees."""
    found = [compare(right, other, embeddings) for right, other in pairs]
    return replace(worst(found), agreement=sum(p.agreement for p in found) / len(found))
