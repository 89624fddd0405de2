"""The rows that show a quantizer the range of every activation, some at a time."""

from collections.abc import Iterator, Mapping

from model_store.tensors import Array

BATCH_ROWS = 64


def calibration_batches(
    rows: Mapping[str, Array], largest: int = BATCH_ROWS
) -> Iterator[dict[str, Array]]:
    """Batches of at most `BATCH_ROWS` rows.

    Args:
        rows: of training data by input name, each [rows, ...].
        largest: the most rows the model takes at once.
    """
    count, size = len(next(iter(rows.values()))), min(largest, BATCH_ROWS)
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in rows.items()}
