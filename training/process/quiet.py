"""Hides warnings and log records of libraries while their code runs."""

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(category: type[Warning] = Warning, loggers: tuple[str, ...] = ()) -> Iterator[None]:
    """Drops warnings of one category, and all but critical log records of some loggers.

    Args:
        category: the warnings to drop; other warnings are not affected.
        loggers: names of the loggers, whose children are quiet with them. Their errors are
            dropped too: a failure also raises an exception, which the user sees.
    """
    levels = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in loggers:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
