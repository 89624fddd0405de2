"""A package that a recipe needs is missing: it is told before data is read and before torch."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from model_store.host.install_advice import install_command
from tests.unit.training.recipes import recipe
from training.errors import RecipeError
from training.recipe.needed_packages import OPTUNA, check_packages

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
    """The state after `pip install` of the wheel alone: one command, not one for each package."""
    chosen = recipe(data=CSV, track=["mlflow"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError) as caught:
        check_packages(chosen, OPTUNA)
    assert str(caught.value) == (
        "data.csv needs pyarrow and track: mlflow needs mlflow and a training needs torch and "
        "a search needs optuna, which are not installed: "
        + install_command("data,mlflow,train,sweep")
    )


PROGRAM = """
import sys
sys.modules["pyarrow"] = sys.modules["optuna"] = None
from flambeau.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
"""The command line, where neither is installed."""
NETS = """
import torch


class Net(torch.nn.Module):
    def __init__(self, inputs: int, *, outputs: int = 1) -> None:
        super().__init__()
"""
RIGHT = {
    "path": "houses.csv",
    "label": "price",
    "column": "area",
    "args": "{inputs: 1}",
    "epochs": "epochs",
}


def told(folder: Path, *words: str, **changes: str) -> str:
    """Returns a command's one-line error about a recipe."""
    right = RIGHT | changes
    (folder / "nets.py").write_text(NETS)
    (folder / "houses.csv").write_text("area,price\n1,2\n")
    (folder / "recipe.yaml").write_text(
        f"model: {{target: 'nets.py:Net', args: {right['args']}}}\n"
        f"data: {{csv: {{path: {right['path']}, label: {right['label']}, "
        f"inputs: {{x: [{right['column']}]}}}}}}\n"
        f"train: {{{right['epochs']}: 3}}\n"
        "loss: {mse: {}}\n"
        "name: houses\n"
        "publish: {model: houses}\n"
    )
    verb, *more = words or ("train",)
    command = [sys.executable, "-c", PROGRAM, verb, "recipe.yaml", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_the_command_line_says_it_without_importing_torch(tmp_path: Path) -> None:
    assert "data.csv needs pyarrow, which is not installed" in told(tmp_path)
    search = ("sweep", "--param", "model.args.outputs=int(1, 3)")
    words = "data.csv needs pyarrow and a search needs optuna, which are not installed"
    assert words in told(tmp_path, *search)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": "hoses.csv"}, "there is no hoses.csv (did you mean 'houses.csv'?)"),
        ({"label": "prize"}, "houses.csv has no column 'prize' (did you mean 'price'?)"),
        ({"column": "aera"}, "houses.csv has no column 'aera' (did you mean 'area'?)"),
        ({"epochs": "epoch"}, "unknown key 'epoch' in 'train' (did you mean 'epochs'?)"),
        ({"args": "{input: 1}"}, "unknown key 'input' in 'model.args'"),
        ({"args": "{}"}, "model.args do not fit nets.py:Net: missing a required argument"),
    ],
)
def test_what_is_wrong_in_the_recipe_is_told_before_it(
    changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    assert words in told(tmp_path, **changes)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("model.args.outptus=int(1, 3)", "unknown key 'outptus' in 'model.args'"),
        ("optim.adamw.lrr=log(1e-4, 1e-1)", "unknown key 'lrr' in 'optim.adamw'"),
    ],
)
def test_a_parameter_of_a_search_that_names_nothing_is_told_before_it(
    parameter: str, words: str, tmp_path: Path
) -> None:
    assert words in told(tmp_path, "sweep", "--param", parameter)
