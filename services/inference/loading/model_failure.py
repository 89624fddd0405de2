"""Failures of one model, of any type: formats their message, and raises them out of a thread.

In: work on the files of one model, which are untrusted. Out: its result, or an `Exception`.

Rule: some libraries raise a `BaseException` that is no `Exception` (a panic in Rust code, `exit()`
in a model's own code); asyncio would end the process for it, so it is converted.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from model_store.errors import StoreError
from model_store.host.failure_text import sendable
from services.errors import BackendError
from services.inference.loading.loader import LoadError
from services.low_priority_thread import start_at_low_priority

MAX_REASON = 2_000
"""Maximum characters of a reason, which is logged, announced and returned to clients."""

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work on one model in a daemon thread: a server that stops does not wait for its end.

    Raises:
        Exception: the exception of the work; a `LoadError` in place of any other `BaseException`.
    """
    here = contextvars.copy_context()
    running = start_at_low_priority(
        lambda: here.run(lambda: guarded(work, *args, **kwargs)), steps=0
    )
    return await asyncio.wrap_future(running)


def guarded(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work on one model in the calling thread.

    Raises:
        Exception: as `in_thread`.
    """
    try:
        return work(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        raise LoadError(f"it ended the thread that reads it: {error!r}") from error


def reason_of(error: BaseException) -> str:
    """Returns the message of a failure, preceded by its type if it is unexpected."""
    text = str(error) if is_expected(error) else f"{type(error).__name__}: {error}"
    text = sendable(text)  # file names may not be valid text
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


def is_expected(error: BaseException) -> bool:
    """Returns True if an error is of a known type, with a message for users."""
    return isinstance(error, StoreError | LoadError | BackendError)
