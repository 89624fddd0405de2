"""Checks the total inflated size of a zip archive before any member is inflated.

In: the bytes of a torch file (TorchScript, `.pt2`, AOTInductor), which is a zip archive. Out:
nothing, or an error with the figures.

torch stores tensors uncompressed and deflates only a module's code; data that deflates to a
thousandth is a zip bomb. torch's own reader truncates a member that understates its size.
"""

import io
import zipfile
from pathlib import Path

from model_store.errors import ArchiveError

MAX_GROWTH = 4
"""Limit of the inflated size as a multiple of the file's size, in addition to `SPARE_BYTES`."""
SPARE_BYTES = 2**26
"""Inflated size that even a small file may have: code deflates to a tenth of its size."""


def check_archive(data: bytes | Path, where: str) -> None:
    """Refuses an archive whose inflated size exceeds the limit.

    Args:
        data: the file's bytes, or its path.
        where: the file's name, for messages.

    Raises:
        ArchiveError: the inflated size is above the limit, or the file is not an archive.
    """
    try:
        with zipfile.ZipFile(data if isinstance(data, Path) else io.BytesIO(data)) as archive:
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
