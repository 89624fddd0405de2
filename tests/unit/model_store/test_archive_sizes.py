"""Archives: the list of their members is limited before it is read."""

import struct
from pathlib import Path

import pytest

from model_store.errors import ArchiveError
from model_store.safety.archive_sizes import check_archive


def with_directory(path: Path, size: int) -> Path:
    """Writes a sparse archive whose list of members has this many bytes, all of them zero."""
    first = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 4)
    second = struct.pack("<4sLQL", b"PK\6\7", 0, 4 + size, 1)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0)
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.truncate(4 + size)
        file.seek(4 + size)
        file.write(first + second + last)
    return path


def test_a_list_of_members_of_any_claimed_size_is_not_read(tmp_path: Path) -> None:
    path = with_directory(tmp_path / "net.pt", 10**11)
    with pytest.raises(ArchiveError, match="list of members has 100,000,000,000 bytes"):
        check_archive(path, "net.pt")


def test_the_same_archive_in_memory_is_refused(tmp_path: Path) -> None:
    data = with_directory(tmp_path / "net.pt", 2**25 + 1).read_bytes()
    with pytest.raises(ArchiveError, match="list of members has 33,554,433 bytes"):
        check_archive(data, "net.pt")
