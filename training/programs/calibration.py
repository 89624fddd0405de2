"""Batches of rows from which a quantizer measures the range of every activation."""

from collections.abc import Iterator, Mapping

from flambeau.protocol.tensors import Array

BATCH_ROWS = 64


def calibration_batches(
    rows: Mapping[str, Array], largest: int = BATCH_ROWS
) -> Iterator[dict[str, Array]]:
    """Yields batches of at most `BATCH_ROWS` rows.

    Args:
        rows: training data by input name, each [rows, ...].
        largest: maximum batch size of the model.
    """
    count, size = len(next(iter(rows.values()))), min(largest, BATCH_ROWS)
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in rows.items()}
