"""CSV and Parquet: round trips, and errors that name the row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

from tests.unit.training.named_data import splits
from training.datasets import Splits
from training.errors import DataError
from training.recipe.parts.data_parts import Csv, Parquet
from training.sources.data_files import DataFiles, DataReach
from training.sources.rows import Rows
from training.sources.table_files import read_csv, read_parquet

GOOD = "a,b,kind\n" + "".join(f"{i},{i / 2},{'cat' if i % 2 else 'dog'}\n" for i in range(20))
DATA = {"path": "rows.csv", "label": "kind"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, **changes: Any) -> Splits:
    Path("rows.csv").write_text(text, encoding="utf-8")
    return splits({"csv": {**DATA, **changes}})


def file_rows(table: pa.Table, form: str, path: Path, **changes: Any) -> Rows:
    """The rows of a table that was written in a form."""
    part: dict[str, Any] = {"path": str(path), "label": "label", **changes}
    if form == "csv":
        csv.write_csv(table, path)
        return read_csv(Csv.model_validate(part), DataFiles(DataReach()))["train"]
    parquet.write_table(table, path, row_group_size=3)
    return read_parquet(Parquet.model_validate(part), DataFiles(DataReach()))["train"]


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(FLOATS, FLOATS, st.integers(-(2**63), 2**63 - 1), NAMES),
        min_size=1,
        max_size=12,
    ),
    form=st.sampled_from(["csv", "parquet"]),
)
def test_what_is_written_comes_back(
    rows: list[tuple[float, float, int, str]], form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    columns = list(zip(*rows, strict=True))
    names = [f"n{name}" for name in columns[3]]  # text that is no number and not missing
    table = pa.table({"a": columns[0], "b": columns[1], "i": columns[2], "label": names})
    inputs = {"ab": ["a", "b"], "i": {"columns": "i", "dtype": "int64"}}
    path = tmp_path_factory.getbasetemp() / f"rows.{form}"
    found = file_rows(table, form, path, inputs=inputs)
    assert np.array_equal(found.inputs["ab"], np.array(columns[:2], np.float32).T)
    assert found.inputs["i"].tolist() == list(columns[2])
    assert found.labels.tolist() == names


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("labels", "kind"),
    [([1, 0, 2], "i"), ([1.5, 2.0, 3.0], "f"), (["x", "1", "y"], "O"), ([True, False, True], "iO")],
)
def test_labels_are_what_they_are_written_as(
    labels: list[Any], kind: str, form: str, tmp_path: Path
) -> None:
    found = file_rows(pa.table({"a": [1, 2, 3], "label": labels}), form, tmp_path / "rows")
    assert found.labels.dtype.kind in kind
    if kind != "iO":
        assert found.labels.tolist() == labels


def test_lists_of_one_length_and_other_types_make_tensors(tmp_path: Path) -> None:
    table = pa.table(
        {
            "tokens": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32())),
            "vector": pa.array([[0.5], [1.5]], pa.list_(pa.float32(), 1)),
            "on": [True, False],
            "text": pa.array(["p", "q"]).dictionary_encode(),
            "label": [0, 1],
        }
    )
    inputs = {
        "tokens": {"columns": "tokens", "dtype": "int64"},
        "vector": "vector",
        "on": {"columns": "on", "dtype": "bool"},
        "text": {"columns": "text", "dtype": "text"},
        "on_number": ["on"],
    }
    found = file_rows(table, "parquet", tmp_path / "rows", inputs=inputs).inputs
    assert found["tokens"].tolist() == [[1, 2], [3, 4]]
    assert [found[name].dtype for name in ("tokens", "vector")] == ["int64", "float32"]
    assert found["vector"].tolist() == [[0.5], [1.5]]
    assert found["on"].tolist() == [True, False]
    assert found["on_number"].tolist() == [[1.0], [0.0]]
    assert found["text"].tolist() == ["p", "q"]


def test_names_of_classes_flow_into_the_splits_and_all_columns_into_features() -> None:
    found = read(GOOD)
    assert found.class_names == ("cat", "dog")
    assert found.train.inputs["features"].shape == (13, 2)
    assert found.train.inputs["features"].dtype == np.float32
    for split in (found.train, found.validation, found.test):
        odd = split.inputs["features"][:, 0] % 2 == 1
        assert split.labels.tolist() == np.where(odd, 0, 1).tolist()
    assert found.origin is not None
    assert found.origin.source == "csv"
    (file,) = found.origin.files
    assert (file.path, file.size_bytes) == ("rows.csv", len(GOOD))


def test_the_recipe_may_put_classes_in_another_order() -> None:
    Path("rows.csv").write_text(GOOD)
    found = splits({"csv": DATA}, labels={"logits": ["dog", "cat"]})
    assert found.class_names == ("dog", "cat")
    odd = found.train.inputs["features"][:, 0] % 2 == 1
    assert found.train.labels.tolist() == odd.tolist()
    with pytest.raises(DataError, match=r"has the class 'dog'.*did you mean 'dogs'"):
        splits({"csv": DATA}, labels={"logits": ["dogs", "cat"]})


def test_splits_come_from_files_of_their_own_or_from_a_column() -> None:
    for name in ("train", "test"):
        Path(f"{name}.csv").write_text(GOOD)
    found = splits({"csv": {**DATA, "path": {"train": "train.csv", "test": "test.csv"}}})
    assert [s.rows for s in (found.train, found.validation, found.test)] == [17, 3, 20]
    said = "a,kind,fold\n1,x,train\n2,y,train\n3,x,test\n4,y,test\n5,x,validation\n6,y,validation\n"
    found = read(said, split_column="fold")
    assert found.train.inputs["features"].ravel().tolist() == [1, 2]
    assert found.test.inputs["features"].ravel().tolist() == [3, 4]
    with pytest.raises(DataError, match=r"data row 3: split_column 'fold' says 'tset'"):
        read(said.replace("x,test", "x,tset"), split_column="fold")


def test_missing_says_what_stands_for_a_cell_without_a_value() -> None:
    found = read(GOOD.replace("\n4,2.0", "\n4,"), missing=-1)
    every = np.concatenate(
        [s.inputs["features"] for s in (found.train, found.validation, found.test)]
    )
    assert every[every[:, 0] == 4].tolist() == [[4.0, -1.0]]


@pytest.mark.parametrize(
    ("old", "new", "changes", "words"),
    [
        ("\n4,2.0,dog", "\n4,,dog", {}, r"data row 5: column 'b' has no value; .*`missing`"),
        ("\n4,2.0,dog", "\n4,nan,dog", {}, r"data row 5: column 'b' has no value"),
        ("\n4,2.0,dog", "\n4,2.0,", {}, r"data row 5: the label 'kind' has no value"),
        ("\n4,2.0,dog", "\n4,two,dog", {}, r"row 5: column 'b' has 'two', which is not a number"),
        ("\n4,2.0,dog", "\n4,inf,dog", {}, r"data row 5: input 'features' has inf"),
        ("\n4,2.0,dog", "\n4,1e300,dog", {}, r"data row 5: input 'features' has inf"),
        ("\n4,2.0,dog", "\n4,dog", {}, r"line 6: 2 cells, and the first line names 3 columns"),
        ("\n4,2.0,dog", '\n4,2.0,"dog', {}, r"rows\.csv"),
        ("a,b,kind", "a,a,kind", {}, r"two columns 'a'"),
        ("a,b,kind", "a,b,kin", {}, r"no column 'kind' \(did you mean 'kin'\?\)"),
        ("", "", {"inputs": {"x": ["aa"]}}, r"no column 'aa' \(did you mean 'a'\?\)"),
        ("", "", {"split_column": "fold"}, r"no column 'fold'"),
        (GOOD, "", {}, r"cannot be read as CSV"),
        (GOOD, "a,b,kind\n", {}, r"rows.csv has columns and no row"),
        (GOOD, "kind\nx\n", {}, r"no columns beside"),
        ("", "", {"delimiter": ";"}, r"no column 'kind'"),
        ("", "", {"inputs": {"x": {"columns": "b", "dtype": "int64"}}}, r"row 1: .*'0\.0'.*whole"),
        (
            "\n4,2.0,dog", "\n400,2.0,dog", {"inputs": {"x": {"columns": "a", "dtype": "uint8"}}},
            r"data row 5: column 'a' has 400, and uint8 holds 0 to 255",
        ),
        (
            "\n4,2.0,dog", "\n,2.0,dog",
            {"inputs": {"x": {"columns": "a", "dtype": "int64"}}, "missing": 0.5},
            r"data row 5: .*`missing` is 0.5, which int64 does not hold",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_row(
    old: str, new: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read(GOOD.replace(old, new) if old else GOOD, **changes)


def test_bytes_that_are_no_text_and_files_that_are_no_parquet_are_refused() -> None:
    Path("rows.csv").write_bytes(b"a,kind\n1,\xff\n")
    with pytest.raises(DataError, match="UTF-8"):
        splits({"csv": DATA})
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        splits({"parquet": DATA})


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([[1], [1, 2]]), r"row 1: column 'a' has 2 elements, and the first row has 1"),
        (pa.array([[1], None]), r"row 1: column 'a' is missing"),
        (pa.array([[1.0], [None]]), r"row 1: column 'a' has no value"),
        (pa.array([1.0, float("nan")]), r"row 1: column 'a' has no value"),
        (pa.array([b"x", b"y"]), r"column 'a' holds binary, which is neither number nor text"),
    ],
)
def test_cells_of_parquet_that_make_no_tensor_are_told(column: pa.Array, words: str) -> None:
    parquet.write_table(pa.table({"a": column, "kind": [0, 1]}), "rows.parquet")
    with pytest.raises(DataError, match=words):
        splits({"parquet": {**DATA, "path": "rows.parquet", "inputs": {"x": "a"}}})


def test_a_small_file_that_unpacks_to_too_much_is_refused_before_it_is_read() -> None:
    table = pa.table({"a": pa.array(np.zeros(100_000)), "kind": pa.array(np.zeros(100_000, int))})
    parquet.write_table(table, "rows.parquet")
    assert Path("rows.parquet").stat().st_size < 10_000
    part = {"parquet": {**DATA, "path": "rows.parquet"}}
    with pytest.raises(DataError, match="unpacked, has 1,600,000 bytes; 100,000 are the most"):
        splits(part, DataReach(max_bytes=100_000))
    with pytest.raises(DataError, match="has 100,000 rows; 99 are the most"):
        splits(part, DataReach(max_rows=99))
