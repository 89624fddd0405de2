"""Takes the sha256 of files while they are appended to, beside the calls that append.

In: a file, and the bytes of it that are there for good. Out: its digest at the end, for which only
the last bytes have still to be read.

Rules: the bytes are read from the file, so that what is hashed is what was stored; the file stays
open from its first byte on, so that another file never takes its place unnoticed; a file whose
beginning this process has not read is hashed from the start.
"""

import hashlib
import os
import threading
from collections import OrderedDict
from concurrent.futures import Executor
from pathlib import Path

from model_store.storage.checked_files import digest_of_file

MAX_FILES = 32
"""Files whose digests are being taken; of more, those appended to longest ago are read again."""
PIECE_BYTES = 2**20


class RunningDigests:
    """The digests of the files that are being appended to.

    Args:
        threads: reads and hashes; None for no work ahead.
    """

    def __init__(self, threads: Executor | None) -> None:
        self._threads = threads
        self._known: OrderedDict[Path, _Running] = OrderedDict()
        self._lock = threading.Lock()

    def advance(self, path: Path, size_bytes: int) -> None:
        """Hashes what has been appended, in a thread; files that shrink are never passed.

        Args:
            path: the file.
            size_bytes: its size; nothing beyond is read, as a failed write may take it back.
        """
        if self._threads is None:
            return
        with self._lock:
            running = self._known.pop(path, None)
            if running is None:
                try:
                    running = _Running(path)
                except OSError:
                    return
            self._known[path] = running
            if len(self._known) > MAX_FILES:
                self._known.popitem(last=False)
        self._threads.submit(running.advance, size_bytes)

    def forget(self, folder: Path) -> None:
        """Closes the files below a folder, which is removed."""
        with self._lock:
            for path in [path for path in self._known if folder in path.parents]:
                del self._known[path]

    def digest(self, path: Path) -> str:
        """Returns the sha256 of a file that no call appends to any more.

        Raises:
            OSError: it cannot be read.
        """
        with self._lock:
            running = self._known.pop(path, None)
        if running is None or not running.is_at(path):
            return digest_of_file(path)
        return running.digest()


class _Running:
    """The digest of the beginning of one file; its descriptor closes with the object."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  # open as long as this
        self._hash = hashlib.sha256()
        self._read_bytes = 0
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def is_at(self, path: Path) -> bool:
        """Returns True if the path still names this file."""
        return os.path.samestat(os.fstat(self._file.fileno()), os.stat(path))

    def advance(self, size_bytes: int) -> None:
        """Hashes the bytes up to a size."""
        with self._lock:
            while self._read_bytes < size_bytes:
                count = min(PIECE_BYTES, size_bytes - self._read_bytes)
                data = os.pread(self._file.fileno(), count, self._read_bytes)
                if not data:
                    return
                self._hash.update(data)
                self._read_bytes += len(data)

    def digest(self) -> str:
        """Hashes the rest, and returns the digest."""
        self.advance(os.fstat(self._file.fileno()).st_size)
        return self._hash.hexdigest()
