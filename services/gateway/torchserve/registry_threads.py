"""Threads of the registry: one pool for changes of the registrations, one for archives.

In: calls that block. Out: their results; their errors are those of a call.

Rule: an archive may take minutes to unpack and gigabytes to remove; threads of their own keep the
other calls of management, which share asyncio's pool, from waiting for that.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from model_store.errors import BadNameError, ModelArchiveError, StoreError
from services.errors import BackendError, InvalidRequestError

MAX_UNPACKINGS = 2
"""Archives that are unpacked at once; each occupies a thread and a core. Further ones wait."""
T = TypeVar("T")


class ArchiveThreads:
    """Threads that unpack archives, and one that removes files."""

    def __init__(self) -> None:
        self._unpackers = ThreadPoolExecutor(MAX_UNPACKINGS, "unpacking")
        self._remover = ThreadPoolExecutor(1, "removal")

    async def unpack(self, call: Callable[[], T]) -> T:
        """Runs what reads an archive; its errors are as of `in_thread`."""
        return await in_thread(call, self._unpackers)

    async def remove(self, call: Callable[[], T]) -> T:
        """Runs what removes files, one after the other; its errors are as of `in_thread`."""
        return await in_thread(call, self._remover)


async def in_thread(call: Callable[[], T], pool: ThreadPoolExecutor | None = None) -> T:
    """Runs a call in a thread.

    Args:
        call: the call.
        pool: threads for it; None for asyncio's own.

    Raises:
        InvalidRequestError: the archive, or a name, is invalid.
        BackendError: the store or a folder cannot be read or written.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, call)
    except (ModelArchiveError, BadNameError) as error:
        raise InvalidRequestError(str(error)) from error
    except StoreError as error:
        raise BackendError(str(error)) from error
    except OSError as error:
        raise BackendError(
            f"the registrations cannot be read or written: {error.strerror or error}; free some "
            "space"
        ) from error
