"""Unpacks the files of a TorchServe archive: a zip (`.mar`), a gzipped tar (`.tar.gz`), a folder.

In: the path of a hostile file. Out: its files below a folder of ours.

Rules: nothing is written outside the folder; links, devices and encrypted members are refused; the
number of files, their depth and their total size are limited, the size also by what is announced
before the first byte is inflated; a folder is used in place, as TorchServe does, and only checked.
"""

import errno
import gzip
import io
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from model_store.errors import ModelArchiveError
from model_store.safety.archive_sizes import opened_archive

MAX_FILES = 10_000
"""Files and folders of an archive, those that paths only imply among them."""
MAX_PATH_CHARACTERS = 512
MAX_NAME_BYTES = 255
"""Name of one file or folder; file systems of Linux have no longer ones."""
MAX_DEPTH = 32
"""Folders in each other."""
MAX_GROWTH = 20
"""Limit of the inflated size as a multiple of the archive's, in addition to `SPARE_BYTES`."""
SPARE_BYTES = 2**28
"""Inflated size that even a small archive may have: untrained weights deflate to a thousandth."""
MAX_ARCHIVE_BYTES = 2**36
PACKAGES = ".packages"
"""Folder among an archive's files that has the packages it asked for; it is none of its files."""
_PIECE_BYTES = 2**20
_ZIP_MAGIC, _GZIP_MAGIC = b"PK", b"\x1f\x8b"
_ADVICE = "make it again with torch-model-archiver"


@dataclass(frozen=True, slots=True)
class _Member:
    """A file of an archive; `source` is its entry there."""

    path: str
    size_bytes: int
    source: zipfile.ZipInfo | tarfile.TarInfo


def unpack_files(archive: Path, folder: Path) -> int:
    """Writes the files of an archive to an existing, empty folder.

    Args:
        archive: a zip or a gzipped tar.
        folder: folder that gets the files, each readable and writable by this user alone.

    Returns:
        Their total size in bytes.

    Raises:
        ModelArchiveError: it is damaged, unsafe or too large, or does not fit on the disk.
    """
    size_bytes = _size_of(archive)
    try:
        with archive.open("rb") as file:
            head = file.read(2)
        if head == _ZIP_MAGIC:
            return _unpack_zip(archive, size_bytes, folder)
        if head == _GZIP_MAGIC:
            return _unpack_tar(archive, size_bytes, folder)
    except ModelArchiveError:
        raise
    except OSError as error:
        raise ModelArchiveError(
            f"{archive.name} cannot be unpacked below {folder}: {reason_of(error)}"
        ) from error
    except Exception as error:  # `zipfile`, `tarfile` and `zlib` raise many types
        raise ModelArchiveError(
            f"{archive.name} is damaged ({type(error).__name__}: {error}); copy it again, or "
            f"{_ADVICE}"
        ) from error
    raise ModelArchiveError(
        f"{archive.name} begins with {head!r}, so it is neither a zip (.mar) nor a gzipped tar "
        f"(.tar.gz); {_ADVICE}"
    )


def reason_of(error: OSError) -> str:
    """Returns why a file cannot be written, and what helps."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}; free some space, or give another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{reason}; give a folder that this user may write to"
    return f"{reason}; {_ADVICE}"


def check_folder(folder: Path) -> int:
    """Checks an archive that is a folder. Returns the total size of its files in bytes.

    Raises:
        ModelArchiveError: it has a link or a special file, or too many or too large files.
    """
    seen, total = 0, 0
    for root, folders, files in os.walk(folder):
        if root == str(folder) and PACKAGES in folders:
            folders.remove(PACKAGES)
        for name in (*folders, *files):
            path = Path(root, name)
            relative = str(path.relative_to(folder))
            seen += 1
            _check_path(relative, folder.name)
            _check_count(seen, folder.name)
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                raise ModelArchiveError(
                    f"{folder.name}: '{relative}' is a link or a special file; replace it by the "
                    "file itself"
                )
            if stat.S_ISREG(found.st_mode):
                total += found.st_size
    if total > MAX_ARCHIVE_BYTES:
        raise ModelArchiveError(
            f"{folder.name} has {total:,} bytes, and at most {MAX_ARCHIVE_BYTES:,} are taken"
        )
    return total


def _size_of(archive: Path) -> int:
    try:
        found = archive.stat()
    except OSError as error:
        raise ModelArchiveError(
            f"{archive} cannot be read: {error.strerror}; give the path of an archive"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise ModelArchiveError(f"{archive} is no regular file; give the path of an archive")
    if not 0 < found.st_size <= MAX_ARCHIVE_BYTES:
        raise ModelArchiveError(
            f"{archive.name} has {found.st_size:,} bytes; an archive has 1 to "
            f"{MAX_ARCHIVE_BYTES:,}; {_ADVICE}"
        )
    return found.st_size


def _unpack_zip(archive: Path, size_bytes: int, folder: Path) -> int:
    with opened_archive(archive) as opened:
        members: list[_Member] = []
        for info in opened.infolist():
            kind = info.external_attr >> 16
            if stat.S_IFMT(kind) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive, info.filename)
            if info.flag_bits & 1 or info.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise ModelArchiveError(
                    f"{archive.name}: '{info.filename[:100]}' is encrypted, or compressed by "
                    f"method {info.compress_type}; only stored and deflated files are read: "
                    f"{_ADVICE}"
                )
            members.append(_Member(info.filename, info.file_size, info))
        files = _checked(members, archive, size_bytes, folder)
        for path, member in files:
            assert isinstance(member.source, zipfile.ZipInfo)
            with opened.open(member.source) as source:
                _write(source, member, folder / path, archive)
    return sum(member.size_bytes for _, member in files)


def _unpack_tar(archive: Path, size_bytes: int, folder: Path) -> int:
    # Headers of a tar may claim any size, and `tarfile` reads them whole: the tar is inflated
    # within the limit first, into a file without a name, and read in short pieces.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as inflated:
        _inflate(archive, size_bytes, inflated)
        inflated.seek(0)
        with _ShortReads(inflated) as file, tarfile.open(fileobj=file, mode="r:") as opened:
            members: list[_Member] = []
            for info in opened:
                _check_count(len(members) + 1, archive.name)
                if info.issparse() or not (info.isreg() or info.isdir()):
                    raise _special(archive, info.name)
                name = info.name.removeprefix("./")
                if name != ".":
                    members.append(_Member(name + "/" * info.isdir(), info.size, info))
            files = _checked(members, archive, size_bytes, folder)
            for path, member in files:
                assert isinstance(member.source, tarfile.TarInfo)
                source = opened.extractfile(member.source)
                assert source is not None
                with source:
                    _write(source, member, folder / path, archive)
    return sum(member.size_bytes for _, member in files)


class _ShortReads(io.BufferedReader):
    """A file that refuses reads of more than a few pieces at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads as a file does."""
        if size is None or not 0 <= size <= 4 * _PIECE_BYTES:
            raise tarfile.ReadError(f"one of its headers has {size} bytes")
        return super().read(size)


def _inflate(archive: Path, size_bytes: int, target: IO[bytes]) -> None:
    limit, written = _limit(size_bytes), 0
    with gzip.open(archive) as source, open(os.dup(target.fileno()), "wb") as file:
        while piece := source.read(_PIECE_BYTES):
            written += len(piece)
            if written > limit:
                raise _bomb(archive, size_bytes, f"more than {limit:,}")
            file.write(piece)


def _checked(
    members: list[_Member], archive: Path, size_bytes: int, folder: Path
) -> list[tuple[str, _Member]]:
    """Returns the files with their paths below the folder, once all of them are safe."""
    name = archive.name
    _check_count(len(members), name)
    found: dict[str, _Member] = {}
    folders: set[str] = set()
    for member in members:
        path = member.path.removesuffix("/")
        _check_path(path, name)
        if member.path.endswith("/"):
            folders.add(path)
            continue
        if member.path in found:
            raise ModelArchiveError(f"{name} has two files '{member.path}'; {_ADVICE}")
        found[member.path] = member
    parents: set[str] = set()
    for path in found:
        parents.update(_parents(path))
        _check_count(len(found) + len(parents), name)
    _check_count(len(found) + len(folders | parents), name)
    total = sum(member.size_bytes for member in found.values())
    if total > _limit(size_bytes):
        raise _bomb(archive, size_bytes, f"{total:,}")
    if (free := shutil.disk_usage(folder).free) < total:
        raise ModelArchiveError(
            f"{name} unpacks to {total:,} bytes, and {free:,} are free below {folder}; free some "
            "space, or give another folder"
        )
    if both := parents & found.keys():
        raise ModelArchiveError(f"{name} has a file and a folder '{min(both)}'; {_ADVICE}")
    top = _only_folder(found)
    return [(path.removeprefix(top), member) for path, member in found.items()]


def _only_folder(paths: dict[str, _Member]) -> str:
    """Returns the folder that has all files, as in a `.tar.gz`; empty if there is none."""
    tops = {path.partition("/")[0] for path in paths if path.count("/")}
    is_one = len(tops) == 1 and all("/" in path for path in paths)
    return f"{min(tops)}/" if is_one and tops != {"MAR-INF"} else ""


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _write(source: IO[bytes], member: _Member, target: Path, archive: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    left = member.size_bytes
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while piece := source.read(_PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                break
            file.write(piece)
    if left:
        raise ModelArchiveError(
            f"{archive.name}: '{member.path}' does not have the {member.size_bytes:,} bytes that "
            f"the archive announces; copy it again, or {_ADVICE}"
        )


def _check_path(path: str, name: str) -> None:
    parts = path.split("/")
    if len(path) > MAX_PATH_CHARACTERS or len(parts) > MAX_DEPTH:
        raise ModelArchiveError(
            f"{name}: the path '{path[:100]}…' has {len(path):,} characters and {len(parts)} "
            f"parts; at most {MAX_PATH_CHARACTERS} and {MAX_DEPTH} are read"
        )
    if (longest := max(len(part.encode(errors="replace")) for part in parts)) > MAX_NAME_BYTES:
        raise ModelArchiveError(
            f"{name}: the path '{path[:100]}…' has a name of {longest:,} bytes; names have at most "
            f"{MAX_NAME_BYTES}: {_ADVICE} with a shorter one"
        )
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise ModelArchiveError(
            f"{name}: the path {path[:100]!r} may lead out of the archive's folder; files have "
            f"relative paths, without '..': {_ADVICE}"
        )


def _check_count(count: int, name: str) -> None:
    if count > MAX_FILES:
        raise ModelArchiveError(
            f"{name} has more than {MAX_FILES:,} files and folders; {_ADVICE} of fewer"
        )


def _limit(size_bytes: int) -> int:
    return MAX_GROWTH * size_bytes + SPARE_BYTES


def _special(archive: Path, path: str) -> ModelArchiveError:
    return ModelArchiveError(
        f"{archive.name}: {path[:100]!r} is a link or a special file; {_ADVICE} from the files "
        "themselves"
    )


def _bomb(archive: Path, size_bytes: int, inflated: str) -> ModelArchiveError:
    return ModelArchiveError(
        f"{archive.name} has {size_bytes:,} bytes and inflates to {inflated}, and at most "
        f"{_limit(size_bytes):,} are taken; {_ADVICE}"
    )
