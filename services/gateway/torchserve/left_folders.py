"""Folders of unregistered archives, which stay as long as a batch of theirs may run.

In: versions that are no longer registered. Out: their folders, removed later; on an event loop.
"""

import asyncio
import shutil

from model_store.archives.registrations import RegisteredVersion

MAX_LEFT_FOLDERS = 8
"""Folders of unregistered archives that stay for their last batches; a further one removes the
oldest: archives may have gigabytes, and batches may run for a day."""


class LeftFolders:
    """The folders that one process has to remove."""

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """By folder, the call that removes it."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def leave(self, one: RegisteredVersion) -> None:
        """Removes the files of a version, if its own, once no batch of it can run any more."""
        if not one.is_own_folder:
            return
        loop = asyncio.get_running_loop()
        self._timers[one.folder] = loop.call_later(one.response_timeout_s, self._due, one.folder)
        if len(self._timers) > MAX_LEFT_FOLDERS:
            await self._remove(next(iter(self._timers)))

    def _due(self, folder: str) -> None:
        task = asyncio.get_running_loop().create_task(self._remove(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove(self, folder: str) -> None:
        if (timer := self._timers.pop(folder, None)) is not None:
            timer.cancel()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
