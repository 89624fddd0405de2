"""Recognises the folder of a store after its volume was unmounted, moved or mounted again.

Rule: a missing folder is not there. An empty one is not either if another one with contents was
there before: it is the place where a volume was mounted. One with contents is taken as it is.
"""

import os
from pathlib import Path
from typing import NamedTuple


class FolderIdentity(NamedTuple):
    """Device and inode of a folder."""

    device: int
    inode: int


def folder_argument(known: FolderIdentity | None) -> str:
    """Returns a folder as an argument of a server's other processes."""
    return f"{known.device}:{known.inode}" if known else "none"


def known_folder(argument: str) -> FolderIdentity | None:
    """Returns the folder of an argument; see `folder_argument`."""
    return None if argument == "none" else FolderIdentity(*map(int, argument.split(":")))


class MountedFolder:
    """A folder that other processes may unmount or move; called from any thread.

    Args:
        path: absolute path of the folder, which may be missing.
        known: the folder that was there before, if any: an empty other one is not it.

    Attributes:
        identity: the folder that was there last; None if there was none yet.
    """

    def __init__(self, path: Path, known: FolderIdentity | None = None) -> None:
        self._path = path
        self.identity = known
        self._was_filled = known is not None

    def is_there(self) -> bool:
        """Returns True if the folder is there.

        Raises:
            OSError: it cannot be read.
        """
        try:
            identity = self._found()
            if identity == self.identity and self._was_filled:
                return True
            is_filled = self._has_entries()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if identity != self.identity and self._was_filled and not is_filled:
            return False
        self.identity, self._was_filled = identity, is_filled
        return True

    def _found(self) -> FolderIdentity:
        found = os.stat(self._path)
        return FolderIdentity(found.st_dev, found.st_ino)

    def _has_entries(self) -> bool:
        with os.scandir(self._path) as entries:
            return next(entries, None) is not None
