"""Finds and removes uploads that nobody has worked on for a day.

In: the folder of the uploads. Rules: the lock of an upload is held while it is removed, so that no
call works on one that vanishes; a place without a record is removed sooner: its server was killed
while the upload began, so that no caller knows its id, and it takes a place of its owner.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from model_store.errors import StoreError
from model_store.uploads.upload_lock import lock_of, locked

UPLOADS = ".uploads"
"""Folder of the uploads within a local store; no model's name begins with a dot."""
RECORD_FILE = "upload.json"
MAX_AGE_S = 24 * 3600.0
"""Time without activity after which an upload is collected."""
UNRECORDED_S = 60.0
"""Time after which a place without a record is collected; to begin an upload takes less."""


def abandoned_uploads(folder: Path, max_age_s: float = MAX_AGE_S) -> Iterator[Path]:
    """Yields the folders of uploads without activity for `max_age_s`, or without a record."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith("."):  # of the folder, not an upload's
                continue
            with contextlib.suppress(OSError):
                place = Path(entry.path)
                lock = lock_of(place)  # without one, its removal was cut off
                age_s = time.time() - os.stat(lock if lock.exists() else place).st_mtime
                is_known = (place / RECORD_FILE).exists()
                if age_s > (max_age_s if is_known else min(max_age_s, UNRECORDED_S)):
                    yield place


def remove_abandoned(
    folder: Path,
    max_age_s: float = MAX_AGE_S,
    removing: Callable[[Path], None] = lambda _: None,
) -> int:
    """Removes the uploads without activity; returns their number.

    Args:
        folder: the folder of the uploads.
        max_age_s: seconds without activity.
        removing: told of each before it is removed.
    """
    removed = 0
    for place in abandoned_uploads(folder, max_age_s):
        with contextlib.suppress(OSError, StoreError):
            has_lock = lock_of(place).exists()
            with locked(place, fcntl.LOCK_EX) if has_lock else contextlib.nullcontext():
                removing(place)
                shutil.rmtree(place, ignore_errors=True)
            removed += 1
    return removed
