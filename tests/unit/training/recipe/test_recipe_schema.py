"""The schema of recipes: what editors mark, and the page that is made from it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from training.recipe.file import load_recipe, parse_value
from training.recipe.reference import reference
from training.recipe.schema import recipe_schema

ROOT = Path(__file__).parents[4]
RECIPES = sorted(
    [*(ROOT / "training/recipes").glob("*.yaml"), *(ROOT / "bench/recipes").rglob("*.yaml")]
)
VALIDATOR = jsonschema.Draft202012Validator(recipe_schema())


def written(recipe: Path) -> Any:
    """Returns a recipe in the form an editor validates: keys are text."""
    return json.loads(json.dumps(parse_value(recipe.read_text(), recipe.name)))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(recipe_schema())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_fit_it_as_they_are_written_and_resolved(recipe: Path) -> None:
    VALIDATOR.validate(written(recipe))
    VALIDATOR.validate(json.loads(json.dumps(load_recipe(str(recipe)).document())))


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "onnx"},
        {"kind": "onnx", "precision": "fp16"},
        {"kind": "pt2", "precision": "int8"},
        {"kind": "pt2", "precision": "int8", "method": "qat"},
    ],
)
def test_an_entry_of_export_is_of_one_kind(entry: dict[str, str]) -> None:
    document = written(ROOT / "training/recipes/digits_cnn.yaml")
    VALIDATOR.validate({**document, "export": [entry]})


def test_weights_without_training_are_valid() -> None:
    document = written(ROOT / "training/recipes/digits_cnn.yaml")
    VALIDATOR.validate({**document, "weights": "net.pt", "train": "none"})


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("optim", {"adamw": {"learning_rate": 1e-3}}),
        ("optim", {"clip": 0}),
        ("optim", {"clip": "a little"}),
        ("train", {"epochs": -1}),
        ("train", "never"),
        ("weights", "net.onnx"),
        ("export", [{"kind": "onnx", "precision": "int4"}]),
        ("nonsense", {}),
    ],
)
def test_what_is_wrong_is_marked(part: str, wrong: Any) -> None:
    document = written(ROOT / "training/recipes/digits_cnn.yaml")
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**document, part: wrong})


def test_a_command_prints_it() -> None:
    printed = CliRunner().invoke(app, ["train", "schema"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == recipe_schema()


def test_a_key_is_shown_with_type_limits_default_and_help() -> None:
    page = reference(recipe_schema()).splitlines()
    assert (
        "| `keep` | whole number, ≥ 1, ≤ 10,000 | `1` | Number of recent checkpoints whose weights "
        "stay in the folder, beside those of the best epoch. Raise it to inspect or average them "
        "later; a run resumes from the last. |"
    ) in page
    assert "One of these, `adamw` unless given:" in page
    assert any(
        line.startswith("| `clip` | [keys](#ClipPart), number, > 0 or `null`") for line in page
    )
    assert any(
        line.startswith("| `steps_per_epoch` | whole number, ≥ 1 or `null` |") for line in page
    )
    assert (
        "### `data.digits`, `data.iris`, `data.wine`, `data.breast_cancer`, `data.diabetes`" in page
    )
