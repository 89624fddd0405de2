"""Imports into a store that is prepared for each model, whose versions go elsewhere afterwards."""

from pathlib import Path

import pytest

from model_store.store import ModelStore
from tests.unit.training.importing.foreign_models import write_steps
from training.errors import RecipeError
from training.importing.import_files import FileImport, import_files


def test_a_version_follows_what_the_store_is_given_before(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    wanted = FileImport(
        files=(str(write_steps(tmp_path / "steps.onnx")),),
        name="",
        store=store.url,
        artifacts=("onnx",),
        batch_axes={"x": 1},
        prepare=lambda model: store.claim(model, 6, "the registry"),
    )
    (imported,) = import_files(wanted, lambda _: None)
    assert (imported.manifest.model, imported.manifest.version) == ("steps", 7)


def test_pipelines_need_the_store_of_their_models(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("steps: []\n")
    wanted = FileImport(
        files=(str(tmp_path / "flow.yaml"),),
        name="flow",
        store=str(tmp_path / "store"),
        prepare=lambda _: None,
    )
    with pytest.raises(RecipeError, match=r"beside its models; .*flambeau push"):
        next(iter(import_files(wanted, lambda _: None)))
