"""Exit codes of the server processes that have commands of their own.

In: the run of a process. Out: its exit code; an error as one line on standard error.
"""

import sys
from collections.abc import Callable

from model_store.errors import StoreError
from services.errors import QueueUnavailableError
from services.ports import PortError
from services.queueing.redis_streams.clients import QueueUrlError
from services.settings import ConfigError

OF_SETTINGS = (ConfigError, QueueUrlError)
"""Errors of settings: the same call fails again."""
OF_SURROUNDINGS = (PortError, StoreError, QueueUnavailableError)
"""Errors of what a process needs: ports, a store, Redis."""


def exit_code(run: Callable[[], None], *further: type[Exception]) -> int:
    """Runs a process until it ends.

    Args:
        run: reads the settings, and serves.
        further: errors that are those of its surroundings, too.

    Returns:
        0; 1 after an error of its surroundings; 2 after one of its settings.
    """
    surroundings: tuple[type[Exception], ...] = (*OF_SURROUNDINGS, *further)
    try:
        run()
    except OF_SETTINGS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except surroundings as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
