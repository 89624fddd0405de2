"""Data files: paths that an untrusted recipe may read, and their lineage."""

import hashlib
import os
from pathlib import Path

import pytest

from training.errors import DataError
from training.sources.data_files import DataFiles, DataReach


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a job works in, and a secret beside it."""
    folder = tmp_path / "code"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows.csv").write_text("a,b\n")
    (tmp_path / "secret.csv").write_text("s")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("path", ["../secret.csv", "data/../../secret.csv", "/etc/passwd", "link"])
def test_nothing_leads_a_stranger_out_of_the_bundle(bundle: Path, path: str) -> None:
    (bundle / "link").symlink_to("../secret.csv")
    files = DataFiles(DataReach(folders=(bundle,)))
    with pytest.raises(DataError, match="is outside the folders that this run may read"):
        files.file(path)
    assert files.noted == ()
    DataFiles(DataReach()).file(path)  # one's own recipe may


def test_whether_a_file_outside_exists_is_not_told(bundle: Path) -> None:
    with pytest.raises(DataError, match="is outside the folders"):
        DataFiles(DataReach(folders=(bundle,))).file("../no_such_file.csv")


def test_links_within_a_folder_lead_nowhere_else(bundle: Path) -> None:
    files = DataFiles(DataReach(folders=(bundle,)))
    (bundle / "data" / "link").symlink_to("../../secret.csv")
    with pytest.raises(DataError, match=r"data/link is outside the folders"):
        files.folder("data")
    (bundle / "data" / "link").unlink()
    (bundle / "data" / "all").symlink_to("/")
    with pytest.raises(DataError, match="link to a folder, all"):
        files.folder("data")


def test_the_operator_may_lend_a_folder(bundle: Path) -> None:
    files = DataFiles(DataReach(folders=(bundle, bundle.parent)))
    files.file("../secret.csv")
    files.file("data/rows.csv")
    assert [noted.path for noted in files.noted] == ["../secret.csv", "data/rows.csv"]
    assert files.noted[0].sha256 == hashlib.sha256(b"s").hexdigest()
    assert files.noted[0].size_bytes == 1


def test_what_is_no_file_is_told(bundle: Path) -> None:
    files = DataFiles(DataReach(max_bytes=3))
    with pytest.raises(DataError, match=r"no data/row\.csv \(did you mean 'rows\.csv'\?\)"):
        files.file("data/row.csv")
    with pytest.raises(DataError, match="data is not a file; it is a folder"):
        files.file("data")
    with pytest.raises(DataError, match=r"rows\.csv is not a folder; it is a file"):
        files.folder("data/rows.csv")
    with pytest.raises(DataError, match=r"rows\.csv has 4 bytes; 3 are the most"):
        files.file("data/rows.csv")
    with pytest.raises(DataError, match="NUL"):
        files.file("a\0b")
    os.mkfifo("pipe")
    with pytest.raises(DataError, match="pipe is not a file; it is something else"):
        files.file("pipe")


def test_as_much_as_the_limits_is_read() -> None:
    reach = DataReach(max_bytes=3, max_rows=5)
    reach.check_size(3, "d")
    reach.check_rows(5, "d")
    with pytest.raises(DataError, match="d has 4 bytes; 3 are the most"):
        reach.check_size(4, "d")
    with pytest.raises(DataError, match="d has 6 rows; 5 are the most"):
        reach.check_rows(6, "d")
