"""A run that is killed in one of its epochs."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from training.loop import evaluation


class CutOffError(Exception):
    """The process was killed."""


@contextmanager
def cut_off_in_epoch(number: int) -> Iterator[None]:
    """Expects a run to be killed at the end of its epoch `number`, before that is evaluated.

    Args:
        number: from 1, counted over all phases of the run.
    """
    right, epochs = evaluation.evaluate, count(1)

    def killed(*arguments: Any) -> dict[str, float]:
        if next(epochs) == number:
            raise CutOffError
        return right(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.loop.loop.evaluate", killed)
        with pytest.raises(CutOffError):
            yield
