"""The names in a torch archive (TorchScript, `.pt2`, AOTInductor, weights), and small members.

Rule: sizes are checked before a member is inflated; nothing is unpickled.
"""

from pathlib import Path
from typing import Any

from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError
from model_store.safety.archive_sizes import check_archive, opened_archive
from training.errors import SourceError
from training.importing.sources.foreign_files import MAX_FILES, file_size

ZIP_MAGIC = b"PK\x03\x04"
MAX_MEMBER_BYTES = 2**28
"""Largest member that is read into this process."""


def member_names(path: Path) -> list[str]:
    """Returns the names of the members below the archive's only folder; empty for no archive.

    Raises:
        SourceError: the archive is damaged, or has more than `MAX_FILES` members.
    """
    with path.open("rb") as file:
        if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            return []
    try:
        with opened_archive(path) as archive:
            names = archive.namelist()
    except Exception as error:  # `zipfile` raises many types
        raise SourceError(
            f"{path} is a damaged archive ({error}); copy or write it again"
        ) from None
    if len(names) > MAX_FILES:
        raise SourceError(f"{path} has {len(names):,} members, and at most {MAX_FILES:,} are read")
    return [name.partition("/")[2] or name for name in names]


def check_sizes(path: Path) -> None:
    """Refuses an archive that inflates to many times its size.

    Raises:
        SourceError: the file is missing or too large.
        ArchiveError: it is no archive, or a zip bomb.
    """
    file_size(path)
    check_archive(path, path.name)


def read_member(path: Path, name: str) -> bytes:
    """Returns the bytes of a member, given its name below the archive's only folder.

    Raises:
        SourceError: it is missing, too large or damaged.
    """
    try:
        with opened_archive(path) as archive:
            for member in archive.infolist():
                if member.filename.partition("/")[2] == name:
                    if member.file_size > MAX_MEMBER_BYTES:
                        raise SourceError(
                            f"{path.name}: {name} has {member.file_size:,} bytes, and at most "
                            f"{MAX_MEMBER_BYTES:,} are read"
                        )
                    return archive.read(member)
    except SourceError:
        raise
    except Exception as error:  # `zipfile` raises many types
        raise SourceError(f"{path.name} is damaged ({error}); copy or write it again") from None
    raise SourceError(f"{path.name} has no {name}, so it is incomplete; write it again")


def read_json_member(path: Path, name: str) -> Any:
    """Returns the document in a member.

    Raises:
        SourceError: it is missing, too large, or not JSON.
    """
    data = read_member(path, name)
    try:
        return parse_document(data, f"{path.name}: {name}", LARGE)
    except DocumentError as error:
        raise SourceError(str(error)) from error
