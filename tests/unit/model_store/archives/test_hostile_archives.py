"""Archives that attack: nothing leaves the folder, nothing grows without limit, all is named."""

import errno
import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_store.archives import archive_files
from model_store.archives.model_archive import open_archive
from model_store.errors import ModelArchiveError
from tests.fixtures.model_archives import write_archive


def refused(path: Path, tmp_path: Path) -> str:
    """Returns the reason; the folder of the files must be gone, and nothing beside it written."""
    target = tmp_path / "out" / "files"
    before = {one for one in tmp_path.rglob("*") if "out" not in one.parts}
    with pytest.raises(ModelArchiveError) as raised:
        open_archive(path, target)
    assert not target.exists()
    assert {one for one in tmp_path.rglob("*") if "out" not in one.parts} == before
    return str(raised.value)


def with_entry(path: Path, name: str, data: bytes = b"x", mode: int = 0, **fields: int) -> Path:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, data, **fields)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "a/../../evil.py",
        "/etc/evil",
        "a//b",
        "./a",
        "a\\..\\b",
        "line\nbreak",
        "x" * 600,
        "/".join("d" * 40),
    ],
)
def test_paths_that_may_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    path = with_entry(write_archive(tmp_path), name)
    assert "path" in refused(path, tmp_path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_special_files_of_a_zip_are_refused(tmp_path: Path, kind: int) -> None:
    path = with_entry(write_archive(tmp_path), "link", b"/etc/passwd", kind | 0o777)
    assert "'link' is a link or a special file" in refused(path, tmp_path)


def _tar(path: Path, change: Callable[[tarfile.TarInfo], None], data: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("m/file")
        info.size = len(data)
        change(info)
        tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_special_files_of_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = kind, "/etc/passwd"

    assert "is a link or a special" in refused(_tar(tmp_path / "m.tar.gz", change), tmp_path)


def test_paths_of_a_tar_are_checked(tmp_path: Path) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.name = "m/../../evil"

    assert "lead out" in refused(_tar(tmp_path / "m.tar.gz", change, b"x"), tmp_path)


def test_a_zip_bomb_is_refused_before_it_is_inflated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "SPARE_BYTES", 2**16)
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(2**24))
    assert "inflates to 16,777,216" in refused(path, tmp_path)


def test_a_gzip_bomb_is_stopped_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "SPARE_BYTES", 2**16)
    path = tmp_path / "m.tar.gz"
    path.write_bytes(gzip.compress(bytes(2**24)))
    assert "inflates to more than" in refused(path, tmp_path)


def test_a_tar_header_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("m/pax")
    header.type, header.size = tarfile.XHDTYPE, 2**40
    path = tmp_path / "m.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf() + bytes(4096)))
    assert "damaged" in refused(path, tmp_path)


@pytest.mark.parametrize(("size", "reason"), [(3, "is damaged"), (300, "not have the 300 bytes")])
def test_a_member_of_another_size_than_announced_is_refused(
    tmp_path: Path, size: int, reason: str
) -> None:
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("file", b"0123456789")
    data = path.read_bytes()
    at = data.rindex(b"PK\x01\x02") + 24
    path.write_bytes(data[:at] + size.to_bytes(4, "little") + data[at + 4 :])
    assert reason in refused(path, tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {f"f{number}": "" for number in range(20)},
        {f"{number}/" * 5 + "f": "" for number in range(2)},
        {f"{number}/": "" for number in range(6)},
    ],
)
def test_many_files_and_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    monkeypatch.setattr(archive_files, "MAX_FILES", 8)
    open_archive(write_archive(tmp_path, files={"a/b/c": "", "a/b/d": ""}), tmp_path / "kept")
    path = write_archive(tmp_path, files=files)
    assert "has more than 8 files and folders" in refused(path, tmp_path)


def test_two_files_of_one_path_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        with_entry(path, "handler.py")
    assert "two files 'handler.py'" in refused(path, tmp_path)


def test_a_file_and_a_folder_of_one_path_are_refused(tmp_path: Path) -> None:
    path = with_entry(write_archive(tmp_path), "handler.py/inner")
    assert "a file and a folder 'handler.py'" in refused(path, tmp_path)


def test_a_full_disk_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_archive(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=7))
    assert "and 7 are free" in refused(path, tmp_path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello", "neither a zip"),
        (b"", "has 0 bytes"),
        (b"PK\x03\x04damaged", "is damaged"),
        (b"\x1f\x8bdamaged", "is damaged|cannot be unpacked"),
    ],
)
def test_what_is_no_archive_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "m.mar"
    path.write_bytes(data)
    with pytest.raises(ModelArchiveError, match=reason):
        open_archive(path, tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    path.write_bytes(bytes(data))
    assert "is encrypted" in refused(path, tmp_path)


def test_a_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path, format="no-archive")
    (path / "link").symlink_to("/etc/passwd")
    with pytest.raises(ModelArchiveError, match="'link' is a link"):
        open_archive(path, tmp_path / "files")


def test_a_name_that_no_file_can_have_is_named(tmp_path: Path) -> None:
    path = with_entry(write_archive(tmp_path), "folder/" + "ä" * 128)
    assert "has a name of 256 bytes; names have at most 255" in refused(path, tmp_path)


def test_a_tar_may_have_a_file_of_any_name(tmp_path: Path) -> None:
    path = write_archive(tmp_path, files={".archive.tar": "own"}, format="tgz")
    folder = open_archive(path, tmp_path / "out").folder
    assert (folder / ".archive.tar").read_text() == "own"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device; free some space"),
        (errno.EACCES, "Permission denied; give a folder that this user may write to"),
        (errno.EEXIST, "File exists; make it again with"),
    ],
)
def test_the_advice_fits_the_reason(number: int, words: str) -> None:
    assert archive_files.reason_of(OSError(number, os.strerror(number))).startswith(words)
