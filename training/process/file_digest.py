"""Computes the digest of a file without loading it into memory."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Returns the digest in hexadecimal, as `sha256sum` writes it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
