"""Batches of rows from which a quantizer measures the range of every activation."""

from collections.abc import Iterator, Mapping

from flambeau.protocol.row_form import batches_of
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array

BATCH_ROWS = 64


def calibration_batches(
    rows: Mapping[str, Array], signature: Signature | None = None, largest: int = BATCH_ROWS
) -> Iterator[dict[str, Array]]:
    """Yields batches of at most `BATCH_ROWS` rows.

    Args:
        rows: training data by input name, each [rows, ...].
        signature: batch axes of the model; None if all are the first.
        largest: maximum batch size of the model.
    """
    size = min(largest, BATCH_ROWS)
    if signature is not None:
        yield from batches_of(rows, signature, size)
        return
    for start in range(0, len(next(iter(rows.values()))), size):
        yield {name: array[start : start + size] for name, array in rows.items()}
