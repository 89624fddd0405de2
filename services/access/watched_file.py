"""A file that may be replaced while the process runs: its bytes, whenever they may have changed."""

from pathlib import Path

from model_store.storage.plain_file import read_plain_file

MAX_BYTES = 4 * 2**20


class WatchedFile:
    """One file.

    Args:
        path: its own; a link is followed, so that a mounted secret which is swapped is noticed.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None

    def read_if_changed(self) -> bytes | None:
        """The bytes, or None if it is the file of the last time.

        Raises:
            OSError: it cannot be read, is no plain file, or is larger than `MAX_BYTES`; it is tried
                again next time.
        """
        seen, self._seen = self._seen, None  # what failed is read again, although it is the same
        found = self.path.stat()
        identity = (found.st_mtime_ns, found.st_size, found.st_ino)
        if identity == seen:
            self._seen = seen
            return None
        data = read_plain_file(self.path, MAX_BYTES)
        self._seen = identity
        return data
