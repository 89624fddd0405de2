"""Files of versions by their sha256, on the disk of this machine, up to a size.

In: entries of manifests, and the bytes of files that match them. Out: the bytes, checked again.

Rules: bytes are checked against their digest whenever they are read, so that a damaged file is
removed and fetched again; the files that were used longest ago are evicted first, and never one
that a load is reading; a folder that cannot be used costs the cache alone, never a load.
"""

import hashlib
import logging
import re
from collections.abc import Callable
from typing import Literal

from model_store.cache.private_folder import PrivateFolder
from model_store.manifest import FileEntry

logger = logging.getLogger("flambeau.store")

_DIGEST = re.compile(r"[0-9a-f]{64}")
Outcome = Literal["hit", "miss", "damaged"]
Count = Callable[[Outcome], None]
"""Callback that counts a read; called from any thread."""


class FileCache:
    """Files by digest; several processes may share their folder.

    Args:
        folder: folder of the files.
        max_bytes: limit of their sizes together.
        count: callback after every read.
    """

    def __init__(self, folder: PrivateFolder, max_bytes: int, count: Count) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._count = count
        self._is_told = False

    def get(self, entry: FileEntry) -> bytes | None:
        """Returns the bytes of a file, which match the entry; None if they are not cached."""
        try:
            data = self._folder.read(entry.sha256, entry.size_bytes, mark=True)
        except OSError as error:
            self._tell(error)
            data = None
        if data is None:
            self._count("miss")
            return None
        if len(data) == entry.size_bytes and hashlib.sha256(data).hexdigest() == entry.sha256:
            self._count("hit")
            return data
        self._count("damaged")
        logger.warning(
            "a cached file was damaged; it is removed and fetched again",
            extra={"file": str(self._folder.path / entry.sha256)},
        )
        try:
            self._folder.remove(entry.sha256)
        except OSError as error:
            self._tell(error)
        return None

    def put(self, entry: FileEntry, data: bytes) -> None:
        """Keeps the bytes of a file that match the entry, unless they exceed the limit.

        Files used longest ago make room. Without disk space nothing is kept; the log says so once.
        """
        if len(data) > self._max_bytes:
            return
        try:
            self._trim(self._max_bytes - len(data))
            self._folder.write(entry.sha256, data)
            self._trim(self._max_bytes)  # another process may have written meanwhile
        except OSError as error:
            self._tell(error)

    def _trim(self, max_bytes: int) -> None:
        """Evicts files until the others fit."""
        files = [file for file in self._folder.files() if _DIGEST.fullmatch(file.name)]
        over = sum(file.size_bytes for file in files) - max_bytes
        for file in sorted(files, key=lambda file: file.used_ns):
            if over <= 0:
                return
            if self._folder.evict(file.name):
                over -= file.size_bytes

    def _tell(self, error: OSError) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "the cache of the store cannot be used; files are read from the store",
                extra={"folder": str(self._folder.path), "reason": str(error)},
            )
