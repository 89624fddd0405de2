"""A non-empty place that is no model store is named for its apparent content."""

from pathlib import Path

import pytest

from model_store.foreign_layout import foreign_layout
from model_store.store import ModelStore
from tests.fixtures.onnx_models import linear, publish


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["resnet/config.pbtxt", "resnet/1/model.onnx"], "looks like a Triton model repository"),
        (["resnet/1/model.onnx"], "looks like a Triton model repository"),
        (["resnet/1/model.plan"], "looks like a Triton model repository"),
        (["resnet/1/model.savedmodel/saved_model.pb"], "looks like a Triton model repository"),
        (["half_plus_two/00000123/saved_model.pb"], "SavedModels for TensorFlow Serving"),
        (["model/MLmodel", "model/data/model.pth"], "MLflow models"),
        (["densenet.mar"], "TorchServe archives"),
        (["a.onnx", "b.onnx", "README"], "looks like a folder of ONNX files"),
        (["exports/a.onnx"], "looks like a folder of ONNX files"),
        (["model.safetensors", "config.json"], "looks like a folder of safetensors files"),
        (["photos/cat.jpg", "notes.txt"], "holds notes.txt, photos, and no model"),
        (["cats/samples/1.jpg"], "holds cats, and no model"),
        ([f"{name}/x" for name in "abcdefg"], "holds a, b, c, d, e and 2 more, and no model"),
        (["1/manifest.json", "pointers/00000001.json"], "give the URL of the store, the folder"),
        (["My Model/1/manifest.json"], "'My Model' in the store s3://b is not a model name"),
        (["store/digits/1/manifest.json"], "but its folder 'store' is: give s3://b/store"),
        (["a/b/digits/1/manifest.json"], "but its folder 'a/b' is: give s3://b/a/b"),
    ],
)
def test_what_is_no_store_is_named(paths: list[str], words: str) -> None:
    assert words in foreign_layout("s3://b", paths)


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["lost+found/x", ".snapshot/y"],
        ["digits/1/claim.json"],
        ["digits/1/claim.json", "digits/1/model.onnx"],
        ["digits/pointers/00000001.json"],
        ["digits/samples/a.jsonl"],
    ],
)
def test_an_empty_store_and_one_being_filled_are_no_fault(paths: list[str]) -> None:
    assert foreign_layout("s3://b", paths) == ""


def test_a_folder_is_looked_at_no_deeper_than_it_must_be(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    assert store.foreign_layout() == ""
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "model.onnx").touch()
    assert "holds a, and no model" in store.foreign_layout()
    (tmp_path / "a" / "config.pbtxt").touch()
    assert "Triton" in store.foreign_layout()


def test_no_more_folders_are_looked_into_than_there_may_be(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}" / "inner").mkdir(parents=True)
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "a.onnx").touch()
    storage = ModelStore(str(tmp_path)).storage
    assert storage.some_paths(max_depth=4, max_paths=100) == ["9/a.onnx"]
    assert storage.some_paths(max_depth=4, max_paths=1) == []


def test_the_folder_of_a_model_and_the_folder_above_a_store_say_where_the_store_is(
    tmp_path: Path,
) -> None:
    publish(str(tmp_path / "store"), "linear", linear())
    assert f"give {tmp_path}/store" in ModelStore(str(tmp_path)).foreign_layout()
    inside = ModelStore(str(tmp_path / "store" / "linear"))
    assert "the folder of one model" in inside.foreign_layout()
