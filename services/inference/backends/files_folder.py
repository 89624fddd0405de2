"""A private folder with the files of one artifact, for code that reads them by path.

In: verified bytes by file name. Out: a read-only folder of this user alone, which is removed with
its last user, or when this process exits.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path


class FilesFolder:
    """A folder of files; made from bytes by `of`, or that of another process by its path.

    Args:
        path: path of an existing folder, which its owner removes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remove: Callable[[], object] = lambda: None
        """Removes the folder, if this process made it; idempotent."""

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> "FilesFolder":
        """Writes files to a new folder, which is removed with the returned object.

        Raises:
            OSError: the disk is full or read-only.
        """
        folder = cls(Path(tempfile.mkdtemp(prefix="flambeau-model-")))
        folder.remove = weakref.finalize(folder, _remove, folder.path)
        for name, data in files.items():
            (folder.path / name).write_bytes(data)
            (folder.path / name).chmod(0o400)
        folder.path.chmod(0o500)
        return folder


def _remove(path: Path) -> None:
    path.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
