"""Checks the total inflated size of a zip archive before any member is inflated.

In: the bytes of a torch file (TorchScript, `.pt2`, AOTInductor), which is a zip archive. Out:
nothing, or an error with the figures.

torch stores tensors uncompressed and deflates only a module's code; data that deflates to a
thousandth is a zip bomb. torch's own reader truncates a member that understates its size.
"""

import contextlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_store.errors import ArchiveError

MAX_GROWTH = 4
"""Limit of the inflated size as a multiple of the file's size, in addition to `SPARE_BYTES`."""
SPARE_BYTES = 2**26
"""Inflated size that even a small file may have: code deflates to a tenth of its size."""

MAX_DIRECTORY_BYTES = 2**25
"""Limit of the list of members: about 300,000. A sparse file can claim any size for it."""


class _Source(io.BufferedReader):
    """A file that refuses long reads until its list of members is read."""

    is_open = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads as a file does, at most `MAX_DIRECTORY_BYTES` at once until `is_open`."""
        if not self.is_open and size is not None and size > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(
                f"its list of members has {size:,} bytes, and at most {MAX_DIRECTORY_BYTES:,} "
                "are read"
            )
        return super().read(size)


@contextlib.contextmanager
def opened_archive(data: bytes | Path) -> Iterator[zipfile.ZipFile]:
    """Opens an archive, after checking the size of its list of members.

    Args:
        data: the file's bytes, or its path.

    Raises:
        BadZipFile: it is no archive, or the list is too long; `zipfile` raises other types, too.
    """
    raw: Any = io.FileIO(data) if isinstance(data, Path) else io.BytesIO(data)
    with _Source(raw) as source, zipfile.ZipFile(source) as archive:
        source.is_open = True
        yield archive


def check_archive(data: bytes | Path, where: str) -> None:
    """Refuses an archive whose inflated size exceeds the limit.

    Args:
        data: the file's bytes, or its path.
        where: the file's name, for messages.

    Raises:
        ArchiveError: the inflated size is above the limit, or the file is not an archive.
    """
    try:
        with opened_archive(data) as archive:
            total = sum(member.file_size for member in archive.infolist())
    except Exception as error:  # `zipfile` raises many types
        raise ArchiveError(
            f"{where} is no zip archive ({error}), as torch writes them; export it again"
        ) from error
    size = data.stat().st_size if isinstance(data, Path) else len(data)
    limit = MAX_GROWTH * size + SPARE_BYTES
    if total > limit:
        raise ArchiveError(
            f"{where} has {size:,} bytes and inflates to {total:,}, and at most {limit:,} are "
            "taken; export it again"
        )
