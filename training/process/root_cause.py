"""Extracts one line from an error that exporters and runtimes have wrapped in pages of advice."""

import re

from model_store.host.failure_text import error_line
from training.errors import TrainingError

_HAS_TYPE = re.compile(r"[\w.]+(Error|Exception): ")
_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def root_cause(error: BaseException) -> str:
    """Returns type and text of the innermost error, or of ours, which needs no other.

    The text is the first line, or that of a traceback which has the error.
    """
    while error.__cause__ is not None and not isinstance(error, TrainingError):
        error = error.__cause__
    line = error_line(_TERMINAL_COLOUR.sub("", str(error)))
    return line if _HAS_TYPE.match(line) else f"{type(error).__name__}: {line}"
