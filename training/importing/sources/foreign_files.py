"""Reads and copies foreign files within limits, and only from where they may lie."""

import os
import shutil
import stat
from pathlib import Path, PurePosixPath

from training.errors import SourceError

GIB = 2**30
MAX_MODEL_BYTES = 64 * GIB
"""Largest file of a model; the copy needs as much space in the temporary folder."""
MAX_TEXT_BYTES = 8 * 2**20
"""Largest configuration, which is parsed in this process."""
MAX_FILES = 10_000
"""Files that a folder may have."""


def file_size(path: Path) -> int:
    """Returns the size of a regular file in bytes.

    Raises:
        SourceError: it does not exist, is no regular file, is empty or is too large.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; give another path") from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path} is no regular file; give the file of a model")
    if found.st_size == 0:
        raise SourceError(f"{path} is empty; write or copy it again")
    if found.st_size > MAX_MODEL_BYTES:
        raise SourceError(
            f"{path} has {found.st_size:,} bytes, and at most {MAX_MODEL_BYTES:,} are read"
        )
    return found.st_size


def read_text(path: Path) -> str:
    """Returns the text of a small UTF-8 file.

    Raises:
        SourceError: it is missing, too large, or not UTF-8.
    """
    if (size := file_size(path)) > MAX_TEXT_BYTES:
        raise SourceError(f"{path} has {size:,} bytes, and at most {MAX_TEXT_BYTES:,} are parsed")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} is no UTF-8 text: {error}") from error


def staged_copy(path: Path, staging: Path, name: str) -> Path:
    """Copies a file into the staging folder.

    Args:
        path: the file.
        staging: folder of ours; it is created.
        name: name of the copy.

    Raises:
        SourceError: the file cannot be read, or there is no space for it.
    """
    size = file_size(path)
    staging.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(staging).free) < size:
        raise SourceError(
            f"{path} has {size:,} bytes, and {free:,} are free below {staging}; free some space, "
            "or set TMPDIR"
        )
    try:
        shutil.copyfile(path, staging / name)
    except OSError as error:
        raise SourceError(f"{path} cannot be copied: {error}") from error
    return staging / name


def beside(
    folder: Path,
    relative: str,
    why: str,
    also: tuple[Path, ...] = (),
    *,
    is_folder: bool = False,
) -> Path:
    """Returns the path of a file that another file names, if it lies in the folder.

    Args:
        folder: the folder.
        relative: the name, as the other file has it: it may be anything.
        why: description of the name, for messages: `net.onnx: tensor 'w'`.
        also: further folders in which links may end.
        is_folder: True to expect a folder.

    Raises:
        SourceError: the name is absolute, leads out of the folder, or names no regular file.
    """
    pure = PurePosixPath(relative)
    shown = relative[:200]
    if not relative or "\0" in relative or pure.is_absolute() or ".." in pure.parts:
        raise SourceError(
            f"{why} asks for the file {shown!r}; only files in {folder} are read: copy it there, "
            "and name it without a folder"
        )
    path = folder / pure
    real = Path(os.path.realpath(path))
    allowed = [Path(os.path.realpath(root)) for root in (folder, *also)]
    if not any(real.is_relative_to(root) for root in allowed):
        raise SourceError(
            f"{why} asks for {shown!r}, a link out of {folder}; replace the link by the file"
        )
    if not (real.is_dir() if is_folder else real.is_file()):
        raise SourceError(f"{why} asks for the file {shown!r}, which is not in {folder}; copy it")
    return path


def files_below(folder: Path) -> list[Path]:
    """Returns the paths of all files in a folder, relative to it and sorted.

    Raises:
        SourceError: there are more than `MAX_FILES`.
    """
    found: list[Path] = []
    for root, _, names in os.walk(folder):
        found += [Path(root, name).relative_to(folder) for name in names]
        if len(found) > MAX_FILES:
            raise SourceError(f"{folder} has more than {MAX_FILES:,} files; name the model's own")
    return sorted(found)
