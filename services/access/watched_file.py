"""A file that may be replaced while the process runs; reads it again if it may have changed."""

from pathlib import Path

from model_store.storage.plain_file import read_plain_file

MAX_BYTES = 4 * 2**20


class WatchedFile:
    """One file.

    Args:
        path: path of the file; links are followed, so that a swapped mounted secret is detected.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None

    def read_if_changed(self) -> bytes | None:
        """Returns the bytes, or None if the file has not changed since the last read.

        Raises:
            OSError: it cannot be read, is not a regular file, or is larger than `MAX_BYTES`; the
                next call tries again.
        """
        seen, self._seen = self._seen, None  # after a failure an unchanged file is read again too
        found = self.path.stat()
        identity = (found.st_mtime_ns, found.st_size, found.st_ino)
        if identity == seen:
            self._seen = seen
            return None
        data = read_plain_file(self.path, MAX_BYTES)
        self._seen = identity
        return data
