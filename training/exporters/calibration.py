"""The rows that show a quantizer the range of every activation, some at a time."""

from collections.abc import Iterator, Mapping

from model_store.tensors import Array

BATCH_ROWS = 64


def calibration_batches(rows: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Batches of at most `BATCH_ROWS` rows.

    Args:
        rows: of training data by input name, each [rows, ...].
    """
    count = len(next(iter(rows.values())))
    for start in range(0, count, BATCH_ROWS):
        yield {name: array[start : start + BATCH_ROWS] for name, array in rows.items()}
