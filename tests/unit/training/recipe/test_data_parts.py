"""The `data` of a recipe: one source by name, old recipes as they were."""

import json
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from tests.unit.training.named_data import recipe
from training.errors import RecipeError
from training.recipe.file import validate_recipe
from training.recipe.parts.data_parts import BySplit, DataPart

CSV = {"path": "a.csv", "label": "kind"}
SHARED = {"batch_size", "workers", "sampler", "augment"}
"""Keys that every source needs."""


def test_a_recipe_with_a_target_is_stored_as_it_always_was() -> None:
    document = recipe({"target": "a.b:c"}).document()["data"]
    assert {"target": "a.b:c", "args": {}, "batch_size": 64}.items() <= document.items()
    assert set(document) == {"target", "args", *SHARED}


def test_the_stored_copy_has_the_chosen_source_with_its_defaults_and_no_other() -> None:
    document = recipe({"csv": CSV, "batch_size": 8}).document()["data"]
    assert set(document) == {"csv", "args", *SHARED}
    assert document["csv"]["validation_share"] == 0.15
    assert recipe(document).document()["data"] == document


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "nothing is named; give one of digits, iris"),
        ({"batch_size": 3}, "nothing is named"),
        ({"iris": {}, "csv": CSV}, "iris and csv exclude each other"),
        ({"csv": None}, "'csv' is empty"),
        ({"iris": {}, "args": {"seed": 1}}, "the data is iris; drop args"),
        ({"csv": {"path": "a.csv"}}, "label"),
        ({"csv": {**CSV, "inputs": {"x": ["kind"]}}}, "input 'x' has the column 'kind'"),
        ({"csv": {**CSV, "label": []}}, "at least 1 item"),
        ({"csv": {**CSV, "path": {"train": "a"}, "split_column": "s"}}, "exclude each other"),
        ({"csv": {**CSV, "delimiter": "\n"}}, "one character"),
        ({"csv": {**CSV, "test_share": 1.0}}, "less than 1"),
        ({"numpy": {"path": "a.npz", "inputs": {}, "label": "y"}}, "at least 1 item"),
        ({"image_folder": {"path": "a", "size": [0, 3]}}, "greater than or equal to 1"),
    ],
)
def test_what_names_no_data_is_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(data)


@pytest.mark.parametrize(("name", "nearest"), [("cvs", "csv"), ("iriss", "iris")])
def test_a_misspelt_source_is_told_the_nearest(name: str, nearest: str) -> None:
    document = {"name": "a", "model": {"target": "a.b:C"}, "data": {name: {}}}
    with pytest.raises(RecipeError, match=rf"'{name}' in 'data' \(did you mean '{nearest}'\?\)"):
        validate_recipe(document, "r.yaml")


def test_a_name_of_one_column_and_a_list_are_short_for_columns() -> None:
    part = recipe({"csv": {**CSV, "inputs": {"x": "a", "y": ["b", "c"]}}}).data.csv
    assert part is not None
    assert part.inputs["x"].names() == ("a",)
    assert part.inputs["y"].columns == ("b", "c")


@pytest.mark.parametrize(
    "data",
    [
        {"target": "a.b:c"},
        {"digits": {}},
        {"csv": {**CSV, "inputs": {"x": ["a"], "y": {"columns": "b", "dtype": "int64"}}}},
        {"parquet": {**CSV, "path": {"train": "a", "test": "b"}}},
        {"image_folder": {"path": "a", "size": [8, 8]}},
        {"numpy": {"path": "a.npz", "inputs": {"x": {"train": "x"}}, "label": "y"}},
    ],
)
def test_the_published_schema_takes_what_the_recipe_takes(data: dict[str, Any]) -> None:
    schema = DataPart.model_json_schema()
    jsonschema.validate(data, schema)
    jsonschema.validate(json.loads(json.dumps(recipe(data).document()["data"])), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "nonsense": 1}, schema)
    assert set(DataPart.choices) < set(schema["properties"])


def test_paths_by_split_need_one_to_learn_from() -> None:
    with pytest.raises(ValidationError, match="train"):
        BySplit.model_validate({"test": "a"})
