"""Failures of one model, of whichever type: what is said of them, and how a thread hands them on.

In: work on the files of one model, which are anybody's. Out: its result, or an `Exception`.

Rule kept here: some libraries raise what is no `Exception` (a panic in Rust code, `exit()` in a
model's own code); left as it is, asyncio would end the process for it.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from model_store.errors import StoreError
from services.errors import BackendError
from services.inference.loading.loader import LoadError

MAX_TOLD = 2_000
"""Characters of a reason, which is logged, announced and told to whoever asks for the model."""

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work on one model in a thread.

    Raises:
        Exception: what it raises; a `LoadError` in the place of what is none.
    """
    return await asyncio.to_thread(lambda: guarded(work, *args, **kwargs))


def guarded(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Does work on one model in the thread that calls.

    Raises:
        Exception: as `in_thread`.
    """
    try:
        return work(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        raise LoadError(f"it ended the thread that reads it: {error!r}") from error


def told(error: BaseException) -> str:
    """What is said of a failure: its message, and its type where that was not foreseen."""
    text = str(error) if is_expected(error) else f"{type(error).__name__}: {error}"
    text = text.encode(errors="replace").decode()  # names of files may be no text
    return text if len(text) <= MAX_TOLD else text[: MAX_TOLD - 3] + "..."


def is_expected(error: BaseException) -> bool:
    """Whether an error has a message for people, because it was foreseen."""
    return isinstance(error, StoreError | LoadError | BackendError)
