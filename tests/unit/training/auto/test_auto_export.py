"""`export: auto` in a recipe: three ways to write exports, each with its own errors."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from training.errors import RecipeError
from training.recipe.file import load_recipe, parse_recipe, resolved_yaml
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.recipe.parts.auto_export import AutoExport, AutoPart
from training.recipe.recipe import Recipe

DIGITS = str(Path(__file__).parents[4] / "training/recipes/digits_cnn.yaml")


def test_auto_is_stored_with_every_default_and_reads_back_as_the_same_object() -> None:
    recipe = load_recipe(DIGITS, ["export=auto"])
    assert recipe.export == AutoPart(auto=AutoExport())
    assert recipe.listed_exports() == ()
    assert parse_recipe(resolved_yaml(recipe), "there") == recipe
    stored = yaml.safe_load(resolved_yaml(recipe))["export"]["auto"]
    assert stored["budget_s"] == 900.0
    assert stored["kinds"] == [n for n, kind in EXPORT_KINDS.items() if kind.tried_by_default]
    assert "torchscript" not in stored["kinds"], "only on request"
    assert stored["precisions"] == ["fp32", "bf16", "fp16", "int8"]
    assert stored["tolerance"]["int8"]["max_metric_drop"] == 0.01


def test_what_may_be_tried_can_be_narrowed() -> None:
    override = "export={auto: {budget_s: 60, kinds: [onnx, torchscript], precisions: [fp32]}}"
    found = load_recipe(DIGITS, [override, "export.auto.tolerance={fp32: {min_agreement: 0.9}}"])
    assert isinstance(found.export, AutoPart)
    auto = found.export.auto
    assert (auto.budget_s, auto.kinds, auto.precisions) == (60, ("onnx", "torchscript"), ("fp32",))
    assert auto.tolerance.fp32.min_agreement == 0.9
    assert auto.tolerance.fp32.max_abs_difference == 1e-4


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("export=atuo", "'export' is 'atuo': give a list of entries, auto, or {auto: {budget_s:"),
        ("export=atuo", "(did you mean 'auto'?)"),
        ("export={atuo: {}}", "unknown key 'atuo' in 'export' (did you mean 'auto'?)"),
        ("export={}", "'export.auto' is missing"),
        ("export={auto: {budgt_s: 1}}", "'budgt_s' in 'export.auto' (did you mean 'budget_s'?)"),
        ("export={auto: {budget_s: 0}}", "'export.auto.budget_s' is 0"),
        ("export={auto: {kinds: []}}", "'export.auto.kinds' is []"),
        ("export={auto: {kinds: [onxx]}}", "'export.auto.kinds.0' is 'onxx'"),
        ("export={auto: {precisions: [fp8]}}", "'fp32', 'bf16', 'fp16' or 'int8'"),
        ("export=[]", "'export' is []"),
        ("export=null", "'export' is null: write a list"),
    ],
)
def test_a_bad_value_is_named_with_what_to_do(override: str, words: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(DIGITS, [override])
    assert words in str(error.value)


def test_the_schema_describes_all_three_forms() -> None:
    schema: dict[str, Any] = Recipe.model_json_schema()
    forms = schema["properties"]["export"]["anyOf"]
    assert [form.get("type") or form["$ref"] for form in forms] == [
        "array",
        "#/$defs/AutoPart",
        "string",
    ]
    assert forms[0]["minItems"] == 1
    assert forms[2]["const"] == "auto"
    assert "budget_s" in schema["$defs"]["AutoExport"]["properties"]


def test_exports_do_not_decide_the_run_folder() -> None:
    digest = load_recipe(DIGITS).training_digest()
    assert load_recipe(DIGITS, ["export=auto"]).training_digest() == digest
