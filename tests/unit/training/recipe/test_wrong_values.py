"""Every key of a recipe, and every setting of a server, given values of every other kind.

A value is taken or told in words: no traceback, and no words about Python's types.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flambeau.commands.serve import parse_settings
from services.gateway.config import GatewayConfig
from services.inference.config import InferenceConfig
from services.settings import ConfigError, ProcessSettings, checked
from services.standalone.config import ServerConfig
from services.trainer.config import TrainerConfig
from training.errors import TrainingError
from training.recipe.file import load_recipe
from training.recipe.needed_packages import check_packages
from training.recipe.schema import recipe_schema
from training.recipe.target_names import check_target_names

VALUES = (
    *("1", "-1", "0.5", "1e400", ".nan", "99999999999999999999999"),
    *("x", "all", '"*"', '"\\0"', "true", "null", "2020-01-01"),
    *("[]", "[null]", "[1, [2]]", "{}", "{a: {b: 1}}", "{1: 2}", "{target: 3}"),
)
OF_OTHERS = (
    *("Traceback", "pydantic", "validation error", " object at 0x"),
    *("instance of", "valid dictionary", "valid tuple", "valid string"),
    *("Input should", "String should", "Tuple should", "Dictionary should", "Keys should"),
)
"""Words that no message may contain."""
DEEPEST = 6
RECIPE = """
name: four
model: {target: 'torch.nn:Linear'}
data: {digits: {}}
publish: {model: four}
"""


def keys_of(node: dict[str, Any], whole: dict[str, Any], above: str = "") -> Iterator[str]:
    """Every key of a JSON schema, with dots between."""
    if above.count(".") > DEEPEST:
        return
    if "$ref" in node:
        yield from keys_of(whole["$defs"][node["$ref"].rpartition("/")[2]], whole, above)
    for kind in ("anyOf", "oneOf", "allOf"):
        for one in node.get(kind, []):
            yield from keys_of(one, whole, above)
    for name, inner in node.get("properties", {}).items():
        yield f"{above}{name}"
        yield from keys_of(inner, whole, f"{above}{name}.")


def faults_of(message: str) -> list[str]:
    return [words for words in OF_OTHERS if words in message]


def test_every_key_of_a_recipe_is_taken_or_told_in_words(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    schema = recipe_schema()
    keys = sorted(set(keys_of(schema, schema)))
    assert len(keys) > 300
    refused = 0
    for key in keys:
        for value in VALUES:
            told = ""
            try:
                recipe = load_recipe(str(file), [f"{key}={value}"])
                check_target_names(recipe)
                check_packages(recipe)
            except TrainingError as error:
                told = str(error)
            assert faults_of(told) == [], f"{key}={value}: {told}"
            refused += bool(told)
    assert refused > len(keys)


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (ServerConfig, {}),
        (GatewayConfig, {"queue": "redis://"}),
        (InferenceConfig, {"queue": "redis://"}),
        (TrainerConfig, {}),
    ],
)
def test_every_setting_of_a_server_is_taken_or_told_in_words(
    kind: type[ProcessSettings], needed: dict[str, Any]
) -> None:
    refused = 0
    for name in kind.model_fields:
        for value in VALUES:
            told = name
            try:
                checked(kind, {**needed, **parse_settings([f"{name}={value}"])})
            except ConfigError as error:
                told = str(error)
                refused += 1
            assert faults_of(told) == [], f"{name}={value}: {told}"
            assert name in told
    assert refused > len(kind.model_fields)
