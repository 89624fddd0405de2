"""What the members of a zip archive come to, before anybody inflates one.

In: the bytes of a torch file (TorchScript, `.pt2`, AOTInductor), which is such an archive. Out:
nothing, or an error with the figures.

torch stores tensors as they are and deflates only a module's code; what deflates to a thousandth
was made to fill memory. A member that says less than it holds is cut off by torch's own reader.
"""

import io
import zipfile

from model_store.errors import ArchiveError

MAX_GROWTH = 4
"""Times the file, that its members may have together beyond `SPARE_BYTES`."""
SPARE_BYTES = 2**26
"""What the members of a small file may have: code deflates to a tenth of itself."""


def check_archive(data: bytes, where: str) -> None:
    """Refuses an archive that inflates to far more than it is.

    Args:
        data: the file.
        where: its name, for messages.

    Raises:
        ArchiveError: it does, or it is no archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            total = sum(member.file_size for member in archive.infolist())
    except Exception as error:  # its parts raise what they like
        raise ArchiveError(
            f"{where} is no zip archive ({error}), as torch writes them; export it again"
        ) from error
    limit = MAX_GROWTH * len(data) + SPARE_BYTES
    if total > limit:
        raise ArchiveError(
            f"{where} has {len(data):,} bytes and inflates to {total:,}, and at most {limit:,} are "
            "taken; export it again"
        )
