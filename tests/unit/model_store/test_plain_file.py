"""File reads accept only plain files, and read no more than requested."""

import os
from pathlib import Path

import pytest

from model_store.storage.plain_file import NotPlainFileError, OversizedFileError, read_plain_file


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
def test_nothing_but_a_plain_file_is_read(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "device":
            place = Path("/dev/zero")
        case "link to a device":
            place.symlink_to("/dev/zero")
        case "folder":
            place.mkdir()
    with pytest.raises(IsADirectoryError if kind == "folder" else NotPlainFileError):
        read_plain_file(place, 100)


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    place, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(place)
    place.write_bytes(b"0123")
    assert read_plain_file(place, 4) == read_plain_file(link, 100) == b"0123"
    with pytest.raises(OversizedFileError, match="it has 4 bytes, and at most 3 are read") as wrong:
        read_plain_file(place, 3)
    assert wrong.value.size_bytes == 4
    # A file of the kernel says that it is empty, as one does that has grown since it was looked at.
    assert read_plain_file("/proc/self/status", 2**20).startswith(b"Name:")
    with pytest.raises(OversizedFileError):
        read_plain_file("/proc/self/status", 10)
