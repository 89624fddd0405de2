"""Packs a code folder for a training service: the modules of a recipe's `file.py:Name`."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = frozenset({"__pycache__", "node_modules", "var"})
"""Folders without code; those whose names begin with a dot are left out too."""
MAX_BYTES = 256 * 2**20
"""Limit of all files together; a service may have a lower one."""


class BundleError(Exception):
    """A folder that cannot be bundled; the message states the reason."""


def pack(folder: Path) -> bytes:
    """Packs a folder as a reproducible tar.gz file.

    Args:
        folder: folder that becomes the working directory of the job.

    Raises:
        BundleError: it is not a folder, is empty or too large, or contains a symbolic link.
    """
    if not folder.is_dir():
        raise BundleError(f"there is no folder {folder}; --bundle takes the folder of your code")
    packed, left = io.BytesIO(), MAX_BYTES
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in _files(folder):
            left -= path.stat().st_size
            if left < 0:
                raise BundleError(
                    f"{folder} holds more than {MAX_BYTES} bytes; give a folder with code only"
                )
            content = path.read_bytes()
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    if left == MAX_BYTES:
        raise BundleError(f"{folder} has no file to send")
    return packed.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """Yields its regular files, in a fixed order."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(x for x in folders if x not in LEFT_OUT and not x.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_symlink():
                raise BundleError(f"{path} is a link; a bundle holds plain files only")
            if path.is_file() and not name.startswith(".") and path.suffix != ".pyc":
                yield path
