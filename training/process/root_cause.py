"""Extracts one line from an error that exporters and runtimes have wrapped in pages of advice."""

import re

from training.errors import TrainingError

_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def root_cause(error: BaseException) -> str:
    """Returns type and first line of the innermost error, or of ours, which needs no other."""
    while error.__cause__ is not None and not isinstance(error, TrainingError):
        error = error.__cause__
    lines = _TERMINAL_COLOUR.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
