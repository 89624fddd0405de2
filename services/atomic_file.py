"""Replaces small files atomically: readers see the old or the new content, even after a crash."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes a file and replaces an old one; only the owner may read it.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
