"""The digest of a file, without holding the file in memory."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """In hexadecimal, as `sha256sum` writes it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
