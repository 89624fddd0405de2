"""Folders of unregistered archives, which stay as long as a batch of theirs may run.

In: versions that are no longer registered. Out: their folders, removed later; on an event loop.
"""

import asyncio
import shutil
from functools import partial

from model_store.archives.model_archive import ModelArchive
from model_store.archives.registrations import RegisteredVersion
from services.gateway.torchserve.register_request import RegisterRequest
from services.gateway.torchserve.registry_threads import ArchiveThreads

MAX_LEFT_FOLDERS = 8
"""Folders of unregistered archives that stay for their last batches; a further one removes the
oldest: archives may have gigabytes, and batches may run for a day."""


class LeftFolders:
    """The folders that one process has to remove.

    Args:
        threads: threads that remove them.
    """

    def __init__(self, threads: ArchiveThreads) -> None:
        self._threads = threads
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """By folder, the call that removes it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def leave(self, one: RegisteredVersion) -> None:
        """Has the files of a version removed, if its own, once no batch of it can run any more."""
        if not one.is_own_folder:
            return
        loop = asyncio.get_running_loop()
        self._timers[one.folder] = loop.call_later(one.response_timeout_s, self._due, one.folder)
        if len(self._timers) > MAX_LEFT_FOLDERS:
            self._due(next(iter(self._timers)))

    def _due(self, folder: str) -> None:
        if (timer := self._timers.pop(folder, None)) is None:
            return
        timer.cancel()
        work = self._threads.remove(partial(shutil.rmtree, folder, ignore_errors=True))
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def discard(opened: ModelArchive, request: RegisterRequest) -> None:
    """Removes the files of an archive that was unpacked; a folder is its owner's."""
    if opened.folder != request.archive:
        shutil.rmtree(opened.folder, ignore_errors=True)
