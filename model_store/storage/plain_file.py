"""Reads regular files up to a size limit, and refuses pipes, sockets, devices and folders.

Rules: opening never blocks, as a pipe without a writer would for ever; no data is returned of
anything but a regular file, nor of a file that is too large.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


class NotPlainFileError(OSError):
    """The path is a folder, a pipe, a socket or a device."""


class OversizedFileError(OSError):
    """The file is larger than the limit.

    Args:
        path: path of the file.
        size_bytes: its size, as far as it is known.
        max_bytes: the limit.
    """

    def __init__(self, path: str | Path, size_bytes: int, max_bytes: int) -> None:
        super().__init__(
            errno.EFBIG,
            f"it has {size_bytes:,} bytes, and at most {max_bytes:,} are read",
            str(path),
        )
        self.size_bytes = size_bytes


def read_plain_file(path: str | Path, max_bytes: int) -> bytes:
    """Reads a file; symbolic links are followed.

    Raises:
        NotPlainFileError: it is not a regular file.
        OversizedFileError: it is larger than `max_bytes`.
        OSError: it cannot be read.
    """
    with open_plain_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > max_bytes:
            raise OversizedFileError(path, size_bytes, max_bytes)
        data = file.read(size_bytes + 1)
        if len(data) > size_bytes:  # it has grown since `fstat`
            data += file.read(max_bytes)
        if len(data) > max_bytes:
            raise OversizedFileError(path, len(data), max_bytes)
        return data


def open_plain_file(path: str | Path) -> BufferedReader:
    """Opens a file for reading; symbolic links are followed.

    Raises:
        NotPlainFileError: it is not a regular file.
        OSError: it cannot be opened.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotPlainFileError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
