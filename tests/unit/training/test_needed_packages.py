"""A package that a recipe needs is missing: it is told before data is read and before torch."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from model_store.install_advice import install_command
from tests.unit.training.recipes import recipe
from training.errors import RecipeError
from training.needed_packages import OPTUNA, check_packages

CSV = {"csv": {"path": "nowhere.csv", "label": "price"}}
NEEDS: list[tuple[dict[str, Any], str, str]] = [
    ({"data": CSV}, "pyarrow", "data"),
    ({"data": {"parquet": {"path": "nowhere", "label": "price"}}}, "pyarrow", "data"),
    ({"data": {"huggingface": {"path": "nowhere", "label": "price"}}}, "pyarrow", "data"),
    ({"data": {"image_folder": {"path": "nowhere"}}}, "PIL", "images"),
    ({"track": ["jsonl", "mlflow"]}, "alembic", "mlflow"),
    ({"track": ["wandb"]}, "wandb", "wandb"),
    ({"export": [{"kind": "onnx"}, {"kind": "openvino"}]}, "openvino", "openvino-train"),
    ({"export": [{"kind": "openvino", "precision": "int8"}]}, "nncf", "openvino-train"),
]


@pytest.mark.parametrize(("changes", "module", "extra"), NEEDS)
def test_a_missing_package_is_named_with_its_command(
    changes: dict[str, Any], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_but_it(name: str) -> ModuleSpec | None:
        return None if name == module else ModuleSpec(name, None)

    chosen = recipe(**changes)
    monkeypatch.setattr(importlib.util, "find_spec", all_but_it)
    with pytest.raises(RecipeError) as caught:
        check_packages(chosen)
    assert f"needs {module}, which is not installed: {install_command(extra)}" in str(caught.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    check_packages(chosen)


def test_all_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install` of the wheel alone: one command, not one for each package."""
    chosen = recipe(data=CSV, track=["mlflow"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError) as caught:
        check_packages(chosen, OPTUNA)
    assert str(caught.value) == (
        "data.csv needs pyarrow and track: mlflow needs mlflow and a training needs torch and "
        "a search needs optuna, which are not installed: "
        + install_command("data,mlflow,train,sweep")
    )


def test_the_command_line_says_it_without_importing_torch(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "model: {target: 'torch.nn:Linear', args: {in_features: 1, out_features: 1}}\n"
        "data: {csv: {path: nowhere.csv, label: price}}\n"
        "loss: {mse: {}}\n"
        "name: houses\n"
        "publish: {model: houses}\n"
    )
    program = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from flambeau.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program, "train", str(file), "--store", str(tmp_path / "s")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "data.csv needs pyarrow, which is not installed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
