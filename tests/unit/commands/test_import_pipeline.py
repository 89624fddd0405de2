"""`flambeau import` of a pipeline in YAML."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from flambeau.cli import app
from model_store.store import ModelStore
from tests.fixtures.pipelines import READER, ROWS, publish_parts


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Returns the arguments of the command, for a pipeline whose models are in the store."""
    publish_parts(str(tmp_path / "store"))
    (tmp_path / "reader.yaml").write_text(yaml.safe_dump(READER))
    np.savez(tmp_path / "rows.npz", x=ROWS["x"])
    return {
        "": tmp_path / "reader.yaml",
        "--name": "reader",
        "--examples": tmp_path / "rows.npz",
        "--store": tmp_path / "store",
    }


def run(arguments: dict[str, Any], *further: str) -> tuple[int, str]:
    words = [str(word) for pair in arguments.items() for word in pair if word]
    result = CliRunner().invoke(app, ["import", *words, *further])
    return result.exit_code, result.output


def test_a_pipeline_is_published_and_its_alias_moves(files: dict[str, Any]) -> None:
    code, text = run(files, "--gate", "scores:absolute=0.25")
    assert code == 0, text
    assert "published reader 1 (1.0.0) → production" in text
    store = ModelStore(str(files["--store"]))
    manifest = store.manifest("reader", 1)
    assert manifest.lineage.imported_from == "reader.yaml"
    assert manifest.pipeline is not None
    assert manifest.pipeline.tolerance.gates["scores"].absolute == 0.25


def test_a_pipeline_needs_examples(files: dict[str, Any]) -> None:
    del files["--examples"]
    code, text = run(files)
    assert code == 2
    assert "--examples" in text


def test_a_pipeline_has_the_name_of_its_file_unless_told(files: dict[str, Any]) -> None:
    del files["--name"]
    code, _ = run(files)
    assert code == 0
    assert "reader" in ModelStore(str(files["--store"])).models()


def test_a_pipeline_that_does_not_fit_is_refused_in_one_line(files: dict[str, Any]) -> None:
    text = files[""].read_text().replace("find.crops}", "find.found}")
    files[""].write_text(text.replace("crop: find.crops", "crop: find.found"))
    code, text = run(files)
    assert code == 1
    assert "step 'score': input 'crop' takes FP32 [-1, 1], and 'find.found' is BOOL" in text
    assert "reader" not in ModelStore(str(files["--store"])).models()
