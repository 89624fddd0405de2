"""Records of uploads that this process has read: each chunk needs the one of its upload.

Rule: a record is read again if its file is another one, or has changed; `os.replace` writes it.
"""

import os
import threading
from collections import OrderedDict
from pathlib import Path

from model_store.document import LARGE
from model_store.storage.plain_file import read_plain_file
from model_store.uploads.declaration import UploadRecord, parse_record

MAX_RECORDS = 64
"""Records that are kept, as many as uploads may be open; one of 1,024 files takes 4 ms to parse."""

_Version = tuple[int, int, int]


class KnownRecords:
    """The records of one folder of uploads."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, tuple[_Version, UploadRecord]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path) -> UploadRecord:
        """Returns the record in a file.

        Raises:
            OSError: it cannot be read.
            StoreError: it is damaged.
        """
        found = os.stat(path, follow_symlinks=False)
        version = found.st_mtime_ns, found.st_ino, found.st_size
        with self._lock:
            known = self._known.get(path)
            if known is not None and known[0] == version:
                self._known.move_to_end(path)
                return known[1]
        record = parse_record(read_plain_file(path, LARGE.max_bytes), path.name)
        with self._lock:
            self._known[path] = version, record
            if len(self._known) > MAX_RECORDS:
                self._known.popitem(last=False)
        return record
