"""MLflow folders: the flavours onnx and pytorch, their input examples, and hostile ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.training.importing.foreign_models import (
    evil_torch_file,
    write_onnx,
    write_script,
)
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.mlflow_model import read
from training.importing.sources.source_options import SourceOptions

ROWS = [[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0]]
SIGNATURE = json.dumps([{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}])
EXAMPLE = f"""
saved_input_example_info: {{artifact_path: input_example.json, type: ndarray}}
signature:
  inputs: '{SIGNATURE}'
"""


def describe(folder: Path, flavour: str, more: str = EXAMPLE) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MLmodel").write_text(f"flavors:\n  python_function: {{}}\n  {flavour}\n{more}")
    (folder / "input_example.json").write_text(json.dumps({"inputs": ROWS}))


def read_here(folder: Path, tmp_path: Path, **options: object) -> Original:
    return read(folder, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


def test_onnx_with_the_stored_example(tmp_path: Path) -> None:
    describe(tmp_path / "m", "onnx: {data: model.onnx}")
    write_onnx(tmp_path / "m" / "model.onnx")
    original = read_here(tmp_path / "m", tmp_path)
    assert original.kind == "onnx"
    assert original.source == f"MLflow model {tmp_path / 'm'} (onnx)"
    assert original.examples is not None
    np.testing.assert_array_equal(original.examples["x"], np.array(ROWS, np.float32))
    assert not original.made_up


@pytest.mark.parametrize(
    "stored",
    [
        {"inputs": {"x": ROWS}},
        {"columns": ["a", "b", "c", "d"], "data": ROWS},
        ROWS,
    ],
)
def test_forms_of_examples(tmp_path: Path, stored: object) -> None:
    describe(tmp_path / "m", "onnx: {data: model.onnx}")
    write_onnx(tmp_path / "m" / "model.onnx")
    (tmp_path / "m" / "input_example.json").write_text(json.dumps(stored))
    original = read_here(tmp_path / "m" / "MLmodel", tmp_path)
    assert original.examples is not None
    np.testing.assert_array_equal(original.examples["x"], np.array(ROWS, np.float32))


def test_an_example_that_is_not_understood_is_told(tmp_path: Path) -> None:
    describe(tmp_path / "m", "onnx: {data: model.onnx}")
    write_onnx(tmp_path / "m" / "model.onnx")
    (tmp_path / "m" / "input_example.json").write_text('{"other": 1}')
    original = read_here(tmp_path / "m", tmp_path)
    assert original.made_up
    assert "was not understood" in original.notes[0]


def test_a_scripted_module_needs_no_pickle(tmp_path: Path) -> None:
    describe(tmp_path / "m", "pytorch: {model_data: data}")
    (tmp_path / "m" / "data").mkdir()
    write_script(tmp_path / "m" / "data" / "model.pth")
    assert read_here(tmp_path / "m", tmp_path).kind == "torchscript"


def test_a_pickled_module_needs_permission(tmp_path: Path) -> None:
    describe(tmp_path / "m", "pytorch: {model_data: data}")
    (tmp_path / "m" / "data").mkdir()
    torch.save(nn.Linear(4, 3).eval(), tmp_path / "m" / "data" / "model.pth")
    with pytest.raises(SourceError, match="--allow-pickle only for files that you trust"):
        read_here(tmp_path / "m", tmp_path)
    original = read_here(tmp_path / "m", tmp_path, allow_pickle=True)
    assert original.kind == "pt2"
    assert original.signature.outputs[0].shape == (-1, 3)


def test_code_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    describe(tmp_path / "m", "pytorch: {model_data: data}")
    (tmp_path / "m" / "data").mkdir()
    evil_torch_file(tmp_path / "m" / "data" / "model.pth", tmp_path / "ran")
    with pytest.raises(SourceError, match="unpickling runs code"):
        read_here(tmp_path / "m", tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("flavour", "message"),
    [
        ("onnx: {data: /etc/passwd}", "asks for the file '/etc/passwd'"),
        ("onnx: {data: ../../secret}", "asks for the file"),
        ("pytorch: {model_data: ../..}", "asks for the file"),
        ("sklearn: {}", "flavors python_function, sklearn"),
        ("onnx: {data: absent.onnx}", "absent.onnx"),
    ],
)
def test_hostile_folders_are_refused(tmp_path: Path, flavour: str, message: str) -> None:
    describe(tmp_path / "m", flavour)
    with pytest.raises(SourceError, match=message):
        read_here(tmp_path / "m", tmp_path)


@pytest.mark.parametrize(
    "inputs",
    ["[1, 2]", "[" * 20_000, '[{"type": "tensor", "tensor-spec": {"dtype": "U500000000"}}]',
     '[{"type": "tensor", "tensor-spec": {"dtype": "(1000000000,)f4"}}]'],
)  # fmt: skip
def test_a_hostile_signature_is_not_understood(tmp_path: Path, inputs: str) -> None:
    more = "saved_input_example_info: {artifact_path: input_example.json}\nsignature:\n"
    describe(tmp_path / "m", "onnx: {data: model.onnx}", f"{more}  inputs: '{inputs}'\n")
    write_onnx(tmp_path / "m" / "model.onnx")
    original = read_here(tmp_path / "m", tmp_path)
    assert original.made_up
    assert any("was not understood" in note for note in original.notes)


def test_an_example_outside_the_folder_is_refused(tmp_path: Path) -> None:
    info = "saved_input_example_info: {artifact_path: /etc/passwd}"
    describe(tmp_path / "m", "onnx: {data: model.onnx}", info)
    with pytest.raises(SourceError, match="asks for the file '/etc/passwd'"):
        read_here(tmp_path / "m", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "flavors: [",
        "- 1",
        "\n".join([f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}, *a{i}, *a{i}]" for i in range(30)]),
        "a: &a [x]\n"
        + "\n".join(
            f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 9)}]" for i in range(12)
        ),
    ],
)
def test_hostile_yaml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "MLmodel").write_text(text)
    with pytest.raises(SourceError, match="MLmodel"):
        read_here(tmp_path, tmp_path)
