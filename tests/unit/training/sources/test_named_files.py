"""Files and columns that are not there are told first, without the packages that read them."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.recipes import recipe
from training.errors import DataError
from training.sources import named_files
from training.sources.data_files import DataReach
from training.sources.named_files import check_named_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(reach: DataReach | None = None, **source: Any) -> None:
    check_named_files(recipe(data=source), reach)


@pytest.mark.parametrize(
    "source",
    [
        {"csv": {"path": "hoses.csv", "label": "kind"}},
        {"csv": {"path": {"train": "houses.csv", "test": "hoses.csv"}, "label": "kind"}},
        {"parquet": {"path": "hoses.csv", "label": "kind"}},
        {"numpy": {"path": "hoses.csv", "label": "y", "inputs": {"x": "x"}}},
        {"image_folder": {"path": "hoses.csv"}},
    ],
)
def test_a_missing_file_is_told_with_the_nearest_name(folder: Path, source: dict[str, Any]) -> None:
    (folder / "houses.csv").write_text("kind,area\n")
    with pytest.raises(DataError, match=r"there is no hoses\.csv \(did you mean 'houses\.csv'\?\)"):
        check(**source)


@pytest.mark.parametrize(
    "text",
    [
        "kind,area\n1,2\n",
        "\ufeffkind,area\n",
        "\n\nkind,area",
        '"kind","area"\r\n"a\nb",2\r\n',
        "kind,area\r1,2\r",
    ],
)
def test_columns_are_found_in_the_first_line(folder: Path, text: str) -> None:
    (folder / "houses.csv").write_text(text, newline="")
    check(csv={"path": "houses.csv", "label": "kind"})
    check(csv={"path": "houses.csv", "label": "kind", "inputs": {"x": ["area"]}})
    for part in ({"label": "kinds"}, {"label": "kind", "inputs": {"x": ["kinds"]}}):
        with pytest.raises(DataError, match=r"no column 'kinds' \(did you mean 'kind'\?\)"):
            check(csv={"path": "houses.csv", **part})


@pytest.mark.parametrize("data", [b"\xff\xfe\x00k", b"a" * 100, b"", b'"kin'])
def test_a_first_line_that_says_nothing_is_left_to_the_reader(
    folder: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_files, "MAX_HEADER_BYTES", 100)
    (folder / "houses.csv").write_bytes(data)
    check(csv={"path": "houses.csv", "label": "kind"})


def test_a_strangers_path_is_told_as_the_reader_tells_it(folder: Path, tmp_path: Path) -> None:
    (folder / "houses.csv").write_text("kind,area\n")
    (folder / "inside").mkdir()
    with pytest.raises(DataError, match="is outside the folders that this run may read"):
        check(DataReach(folders=(folder / "inside",)), csv={"path": "houses.csv", "label": "kind"})


def test_data_without_files_has_nothing_to_look_for() -> None:
    check(iris={})
    check(target="nowhere.py:rows")
