"""Data sets of Hugging Face on disk: their own splits and names, and nothing beside them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.training.named_data import splits
from training.errors import DataError

PART = {"path": "set", "label": "kind", "inputs": {"x": ["a", "b"]}}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(folder: str, numbers: range, shards: int = 2, **state: Any) -> None:
    """Writes the files of `save_to_disk` of datasets 5.2."""
    path = Path(folder)
    path.mkdir(parents=True)
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    for shard, name in enumerate(names):
        part = list(numbers)[shard * len(numbers) // shards : (shard + 1) * len(numbers) // shards]
        table = pa.table(
            {
                "a": pa.array([n / 4 for n in part], pa.float32()),
                "b": part,
                "kind": [n % 2 for n in part],
                "text": [str(n) for n in part],
            }
        )
        with pa.ipc.new_stream(path / name, table.schema) as stream:
            stream.write_table(table)
    kinds = {"names": ["no", "yes"], "_type": "ClassLabel"}
    value = {"dtype": "float32", "_type": "Value"}
    (path / "dataset_info.json").write_text(
        json.dumps({"features": {"a": value, "b": value, "kind": kinds, "text": value}})
    )
    files = [{"filename": name} for name in names]
    document = {
        "_data_files": files, "_fingerprint": "f", "_format_columns": None, "_format_kwargs": {},
        "_format_type": None, "_output_all_columns": False, "_split": None, **state,
    }  # fmt: skip
    (path / "state.json").write_text(json.dumps(document))


def test_names_of_classes_and_own_splits_are_kept() -> None:
    save("set", range(20))
    found = splits({"huggingface": PART})
    assert found.class_names == ("no", "yes")
    assert (found.train.labels == found.train.inputs["x"][:, 1] % 2).all()
    save("apart/train", range(12))
    save("apart/test", range(19, 11, -1), shards=1)
    save("apart/unsupervised", range(3), shards=1)
    Path("apart/dataset_dict.json").write_text('{"splits": ["train", "test", "unsupervised"]}')
    found = splits({"huggingface": {**PART, "path": "apart"}})
    assert [part.rows for part in (found.train, found.validation, found.test)] == [10, 2, 8]
    assert found.test.inputs["x"][:, 1].tolist() == list(range(19, 11, -1))
    with pytest.raises(DataError, match="give the folder of one"):
        splits({"huggingface": {**PART, "path": {"train": "apart"}}})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("state.json", '{"_data_files": [{"filename": "../s.arrow"}]}', "lies elsewhere"),
        ("state.json", '{"_data_files": [{"filename": "/etc/passwd"}]}', "lies elsewhere"),
        ("state.json", '{"_data_files": [3]}', "lies elsewhere"),
        ("state.json", '{"_data_files": [], "_format": 1}', "holds no rows"),
        ("state.json", '{"_indices_data_files": ["x"]}', "save it again"),
        ("state.json", "[]", r"state\.json is damaged"),
        ("state.json", "{", r"state\.json is damaged"),
        ("dataset_info.json", "{}", r"dataset_info\.json is damaged"),
        ("dataset_dict.json", '{"splits": ["dev"]}', r"has the splits \['dev'\]; one must be"),
        ("data-00000-of-00002.arrow", "junk", "cannot be read as Arrow"),
    ],
)
def test_a_damaged_data_set_is_told_and_opens_no_file_beside_its_own(
    name: str, content: str, words: str
) -> None:
    save("set", range(20))
    (Path("set") / name).write_text(content)
    with pytest.raises(DataError, match=words):
        splits({"huggingface": PART})


def test_a_row_without_a_class_and_a_folder_without_a_data_set_are_told() -> None:
    save("set", range(20))
    info = Path("set/dataset_info.json")
    info.write_text(info.read_text().replace('["no", "yes"]', '["no"]'))
    with pytest.raises(DataError, match="row 1: the label 'kind' is 1, and there are 1 classes"):
        splits({"huggingface": PART})
    Path("empty").mkdir()
    with pytest.raises(DataError, match=r"save_to_disk wrote: state\.json is missing"):
        splits({"huggingface": {**PART, "path": "empty"}})
