"""The classes of `docs/guides/python-models.md` work as the page says."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.tensors import object_array
from tests.fixtures.onnx_models import linear
from training.importing.recording import record_outputs
from training.importing.sources.python_source import python_original
from training.recipe.recipe import ExportLimits

GUIDE = Path(__file__).parents[4] / "docs/guides/python-models.md"
BLOCK = re.compile(r"^```python\n(?:# (\w+\.py)\n)?(.*?)^```", re.MULTILINE | re.DOTALL)
CASES: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "greeting.py": (
        {"name": object_array([b"Ada", b"Grace"])},
        {"text": [b"Hello, Ada!", b"Hello, Grace!"], "length": [3, 5]},
    ),
    "centred.py": ({"x": np.array([[1.0, 3.0]])}, {"y": [[-1, 1]], "largest": [1]}),
    "words.py": (
        {"text": object_array([b"red green", b"green red green red"])},
        {"scores": [[4, 2, 0, 0], [2, 4, 2, 4]], "label": [b"short", b"long"]},
    ),
    "countdown.py": ({"start": np.array([2, 3])}, {"number": [0, 0]}),
}


def test_every_block_of_the_page_is_known() -> None:
    files = dict(BLOCK.findall(GUIDE.read_text()))
    assert {file for file in files if file} == set(CASES)
    assert any("flambeau.publish(" in text for file, text in files.items() if not file)


@pytest.mark.parametrize("file", CASES)
def test_a_class_of_the_page_answers_as_it_says(tmp_path: Path, file: str) -> None:
    source = dict(BLOCK.findall(GUIDE.read_text()))[file]
    (tmp_path / file).write_text(source)
    files = {}
    if file == "words.py":
        (tmp_path / "vocabulary.json").write_text(json.dumps({"red": 2, "green": 1}))
        (tmp_path / "scores.onnx").write_bytes(linear(2.0))
        files = {name: tmp_path / name for name in ("vocabulary.json", "scores.onnx")}
    (tmp_path / "staging").mkdir()
    inputs, right = CASES[file]
    name = file.removesuffix(".py").capitalize()
    found = python_original(
        tmp_path / file, name, {"length": 4}, files, inputs, tmp_path / "staging"
    )
    outputs = record_outputs(found, inputs, ExportLimits())
    assert {key: array.tolist() for key, array in outputs.items()} == right
