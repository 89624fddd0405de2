"""Recognises the folder of a store after its volume was unmounted, moved or mounted again.

Rule: a missing folder is not there. An empty one is not either if another one with contents was
there before: it is the place where a volume was mounted. One with contents is taken as it is.
"""

import os
from pathlib import Path


class MountedFolder:
    """A folder that other processes may unmount or move; called from any thread.

    Args:
        path: absolute path of the folder, which exists.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._found()
        self._was_filled = self._has_entries()

    def is_there(self) -> bool:
        """Returns True if the folder is there.

        Raises:
            OSError: it cannot be read.
        """
        try:
            identity = self._found()
            if identity == self._identity:
                self._was_filled = self._was_filled or self._has_entries()
                return True
            if self._was_filled and not self._has_entries():
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._identity = identity
        return True

    def _found(self) -> tuple[int, int]:
        """Returns device and inode of the folder."""
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    def _has_entries(self) -> bool:
        with os.scandir(self._path) as entries:
            return next(entries, None) is not None
