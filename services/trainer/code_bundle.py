"""Unpacks the code of a job, which may come from an untrusted client.

In: the bytes of a zip, a tar or a tar.gz file. Out: a folder with its files.

Rules: every name is checked before anything is written; nothing is written outside the folder; only
folders and plain files are created, without their modes and owners; limits apply to the unpacked
bytes, not to the sizes that the archive states; a folder is complete or absent; members are counted
before Python's readers create an object for each, which takes 50 µs: 15 MB may have 300,000.
"""

import gzip
import io
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from services.errors import InvalidRequestError, PayloadTooLargeError

LONGEST_NAME = 240
DEEPEST = 20
CHUNK_BYTES = 64 * 2**10
TAR_BLOCKS_BYTES = 4096
"""Average limit of a tar member's bytes beside its content: headers, long names, padding."""
ZIP_ENTRY = b"PK\x01\x02"
"""Signature of each entry in a zip file's directory."""
ZIP_ENTRY_BYTES = 1024
"""Average limit of such an entry: its name, and attributes, which Python parses slowly."""
ZIP_END_BYTES = 128 * 2**10
"""More than Python reads of a zip file to find its directory."""
GZIP = b"\x1f\x8b"
MAX_SHARED_HEADERS = 64
"""Headers of a tar file for all members: Python copies them to each. `git archive` writes one."""
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError,
    ValueError, OverflowError, LookupError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""Exceptions of Python's readers for damaged or encrypted archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """Limits of a bundle."""

    max_bytes: int
    """Size of the archive."""
    max_unpacked_bytes: int
    """Total size of all files."""
    max_files: int
    """Number of files and folders."""


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    is_folder: bool
    open: Callable[[], IO[bytes]]


class _Listed(io.BytesIO):
    """An archive that passes all bytes read while its members are listed to a meter.

    Args:
        data: contents of the archive.
        meter: callable that raises an error if the bytes exceed a limit.
    """

    def __init__(self, data: bytes, meter: Callable[[bytes], None]) -> None:
        super().__init__(data)
        self._meter: Callable[[bytes], None] | None = meter

    def read(self, size: int | None = -1, /) -> bytes:
        """See `io.BytesIO`."""
        found = super().read(size)
        if self._meter is not None:
            self._meter(found)
        return found

    def end(self) -> None:
        """Stops metering: all members are listed, and later reads are content."""
        self._meter = None


def unpack(data: bytes, folder: Path, limits: BundleLimits) -> None:
    """Writes the files of a bundle.

    Args:
        data: contents of the archive.
        folder: folder to create; must not exist.
        limits: limits of the bundle.

    Raises:
        PayloadTooLargeError: it exceeds a limit.
        InvalidRequestError: it is no archive, damaged, or has a name or a kind of file that is not
            accepted.
        OSError: the folder cannot be written.
    """
    if len(data) > limits.max_bytes:
        raise PayloadTooLargeError(
            f"the code bundle has {len(data)} bytes; {limits.max_bytes} are allowed "
            "(max_bundle_bytes): leave data out of it"
        )
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _write(_members(data, limits), temporary, limits)
        os.replace(temporary, folder)
    except _BROKEN as error:
        raise InvalidRequestError(f"the code bundle cannot be read: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _members(data: bytes, limits: BundleLimits) -> list[_Member]:
    """Returns all members, with names that are not checked yet."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        return _zip_members(data, limits)
    return _tar_members(_inflated(data, limits), limits)


def _zip_members(data: bytes, limits: BundleLimits) -> list[_Member]:
    def meter(read: bytes) -> None:
        # The directory is read in one piece.
        entries = 0
        for begin in range(0, len(read), CHUNK_BYTES):
            entries += read.count(ZIP_ENTRY, begin, begin + CHUNK_BYTES + len(ZIP_ENTRY) - 1)
            if entries > limits.max_files:
                raise _too_many(limits)
        if len(read) > max(ZIP_END_BYTES, entries * ZIP_ENTRY_BYTES):
            raise _too_many(limits)

    file = _Listed(data, meter)
    archive = zipfile.ZipFile(file)
    file.end()
    members: list[_Member] = []
    for info in archive.infolist():
        if len(members) == limits.max_files:
            raise _too_many(limits)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refused(info.filename, "is a link or a device; pack plain files only")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _refused(info.filename, "has an unsupported compression; use 'deflate'")
        members.append(_Member(info.filename, info.is_dir(), partial(archive.open, info)))
    return members


def _tar_members(data: bytes, limits: BundleLimits) -> list[_Member]:
    left = limits.max_files * TAR_BLOCKS_BYTES

    def meter(read: bytes) -> None:
        # Only headers are read; those of long names and attributes may state any length.
        nonlocal left
        left -= len(read)
        if left < 0:
            raise _too_many(limits)

    file = _Listed(data, meter)
    archive = tarfile.TarFile(fileobj=file)
    members: list[_Member] = []
    for info in archive:
        if len(members) == limits.max_files:
            raise _too_many(limits)
        if len(archive.pax_headers) > MAX_SHARED_HEADERS:
            raise _refused(info.name, "has too many global headers; leave them out")
        if not (info.isreg() or info.isdir()):
            raise _refused(info.name, "is a link or a device; pack plain files only")
        members.append(_Member(info.name, info.isdir(), partial(_content, archive, info)))
    file.end()
    return members


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(info)
    assert content is not None, "a plain file has content"
    return content


def _inflated(data: bytes, limits: BundleLimits) -> bytes:
    """Returns the tar file, decompressed up to the limit."""
    if not data.startswith(GZIP):
        return data
    most = limits.max_unpacked_bytes + limits.max_files * TAR_BLOCKS_BYTES
    with gzip.open(io.BytesIO(data)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise _too_large(limits)
    return found


def _write(members: list[_Member], folder: Path, limits: BundleLimits) -> None:
    paths: dict[PurePosixPath, _Member] = {}
    for member in members:
        path = _checked(member.name)
        if path in paths and not (member.is_folder and paths[path].is_folder):
            raise _refused(member.name, "occurs twice")
        paths[path] = member
    for path in paths:
        for parent in path.parents:
            if parent in paths and not paths[parent].is_folder:
                raise _refused(str(path), f"lies within '{parent}', which is a file")
    left = limits.max_unpacked_bytes
    for path, member in paths.items():
        place = folder / path
        if member.is_folder:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as content, place.open("xb") as file:
            while chunk := content.read(CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise _too_large(limits)
                file.write(chunk)


def _checked(name: str) -> PurePosixPath:
    """Converts a name to a path, and checks that it stays within the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise _refused(name, "leads out of it; give paths within the bundle")
    if not name.isprintable() or len(name) > LONGEST_NAME or len(path.parts) > DEEPEST:
        raise _refused(
            name, f"is not a name of at most {LONGEST_NAME} characters and {DEEPEST} folders"
        )
    return path


def _refused(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the code bundle is refused: {name[:80]!r} {why}")


def _too_many(limits: BundleLimits) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the code bundle has more than {limits.max_files} files (max_bundle_files), or more is "
        "said of them than files need"
    )


def _too_large(limits: BundleLimits) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the code bundle has more than {limits.max_unpacked_bytes} bytes when unpacked "
        "(max_unpacked_bytes): leave data out of it"
    )
