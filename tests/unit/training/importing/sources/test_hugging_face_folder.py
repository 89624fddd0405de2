"""Hugging Face folders: unsafe or incomplete ones are refused before anything is loaded."""

import importlib.util
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.hugging_face_folder import read
from training.importing.sources.source_options import SourceOptions

has_transformers = importlib.util.find_spec("transformers") is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    safetensors.torch.save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    return folder


def read_here(folder: Path, tmp_path: Path, **options: object) -> Original:
    return read(folder, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


@pytest.mark.skipif(has_transformers, reason="transformers is installed")
def test_the_missing_library_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"install it with .*pip install transformers"):
        read_here(folder, tmp_path)


def test_code_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Net"}}')
    with pytest.raises(SourceError, match="code of its own"):
        read_here(folder, tmp_path)


def test_pickled_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"only pytorch_model\.bin, a pickle.*--allow-pickle"):
        read_here(folder, tmp_path)


def test_missing_weights_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"has no model\.safetensors, no weights"):
        read_here(folder, tmp_path)


@pytest.mark.parametrize("shard", ["/etc/passwd", "../model.safetensors", "absent.safetensors"])
def test_shards_outside_the_folder_are_refused(folder: Path, tmp_path: Path, shard: str) -> None:
    index = {"weight_map": {"w": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match="asks for the file"):
        read_here(folder, tmp_path)


def test_weights_of_100_gigabytes_are_refused(folder: Path, tmp_path: Path) -> None:
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(50 * 2**30)
    with pytest.raises(SourceError, match=r"50\.0 GiB of weights, and the memory limit is 16 GiB"):
        read_here(folder, tmp_path)


@pytest.mark.parametrize("text", ["[" * 10_000, "[]", "nothing", ""])
def test_a_broken_configuration_is_refused(folder: Path, tmp_path: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(SourceError, match=r"config\.json"):
        read_here(folder, tmp_path)


@pytest.mark.skipif(not has_transformers, reason="transformers is not installed")
def test_a_network_of_texts_is_exported_with_its_tokenizer(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    folder = tmp_path / "model"
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    original = read_here(folder, tmp_path)
    assert [spec.shape for spec in original.signature.inputs] == [(-1, -1), (-1, -1)]
    assert original.signature.padding is not None
    assert original.signature.padding.buckets == (16, 32)
    assert original.signature.padding.outputs == {"last_hidden_state": 1}
    assert [file.name for file in original.side_files] == ["tokenizer.json"]
