"""The classes of `docs/guides/python-models.md` work as the page says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.tensors import object_array
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
MAKES_FILES = "make_files.py"


def blocks() -> dict[str, str]:
    """Returns the blocks that are files, by name."""
    return {file: text for file, text in BLOCK.findall(GUIDE.read_text()) if file}


def test_every_block_of_the_page_is_known() -> None:
    assert set(blocks()) == {*CASES, MAKES_FILES}
    others = [text for file, text in BLOCK.findall(GUIDE.read_text()) if not file]
    assert sum("flambeau.publish(" in text for text in others) == 2
    for text in others:
        compile(text, str(GUIDE), "exec")


@pytest.mark.parametrize("file", CASES)
def test_a_class_of_the_page_answers_as_it_says(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text(blocks()[file])
    files = {}
    if file == "words.py":
        made = [sys.executable, "-W", "error", "-c", blocks()[MAKES_FILES]]
        subprocess.run(made, cwd=tmp_path, check=True)
        files = {name: tmp_path / name for name in ("vocabulary.json", "scores.onnx")}
    (tmp_path / "staging").mkdir()
    inputs, right = CASES[file]
    name = file.removesuffix(".py").capitalize()
    found = python_original(
        tmp_path / file, name, {"length": 4}, files, inputs, tmp_path / "staging"
    )
    (recorded,) = record_outputs(found, inputs, ExportLimits())
    assert {key: array.tolist() for key, array in recorded.outputs.items()} == right
