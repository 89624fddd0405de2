"""Reads a recipe from YAML or from a Python function, and applies `--set`.

In: `path/recipe.yaml`, `path/file.py:function` or `package.module:function`, and overrides
`a.b=c` whose right side is YAML. Out: a `Recipe`.
"""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from flambeau.protocol.strict import explain
from model_store.host.nearest_folder import nearest_folder
from model_store.yaml_text import YamlError, read_yaml
from training.errors import RecipeError
from training.recipe.recipe import Recipe
from training.recipe.targets import call_named, load_target

MAX_RECIPE_BYTES = 1_000_000
"""Largest recipe file that is read, in bytes; a recipe is about one page."""


class _RecipeLoader(yaml.SafeLoader):
    """YAML 1.1 with two pitfalls removed: `1e-3` is a number, a repeated key is an error."""


_RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+"),
    list("-+0123456789"),
)


def _unique_mapping(loader: _RecipeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    found = set()
    for key in (loader.construct_object(key) for key, _ in node.value):
        if isinstance(key, Hashable):  # construct_mapping reports unhashable keys itself
            if key in found:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key}' occurs twice; keep one", node.start_mark
                )
            found.add(key)
    return loader.construct_mapping(node)


_RecipeLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies overrides.

    Args:
        source: a YAML file, or a function without arguments that returns a `Recipe`.
        overrides: `a.b=c` each; a part may also be the position in a list (`export.0.kind=onnx`).

    Raises:
        RecipeError: the source cannot be read, or the recipe has an unknown key or a bad value.
    """
    if source.endswith((".yaml", ".yml")):
        document = _parse_yaml(read_recipe_text(Path(source)), source)
    elif ":" in source:
        document = _call_function(source)
    else:
        raise RecipeError(
            f"recipe {source!r} is neither a .yaml file nor path/file.py:function; give one of them"
        )
    for override in overrides:
        _apply(document, override)
    return validate_recipe(document, source)


def parse_recipe(text: str, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe from YAML text, such as a stored `recipe.resolved.yaml`.

    Args:
        text: YAML text.
        where: path of the text, for messages.
        overrides: as for `load_recipe`.

    Raises:
        RecipeError: the text is not YAML, or has an unknown key or a bad value.
    """
    document = _parse_yaml(text, where)
    for override in overrides:
        _apply(document, override)
    return validate_recipe(document, where)


def resolved_yaml(recipe: Recipe) -> str:
    """Dumps the recipe as YAML with all defaults; `parse_recipe` reads back an equal object."""
    return yaml.safe_dump(recipe.document(), sort_keys=False, allow_unicode=True)


def read_recipe_text(path: Path) -> str:
    """Returns the text of a recipe file unchanged.

    Raises:
        RecipeError: the file is missing, unreadable, or larger than `MAX_RECIPE_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise RecipeError(f"recipe {path} is larger than {MAX_RECIPE_BYTES} bytes; is it one?")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not path.parent.is_dir():
            near = nearest_folder(path.parent.absolute())
            hint = f" (did you mean '{near}'?)" if near else ""
            raise RecipeError(
                f"there is no recipe {path}: no such folder{hint}; paths start at the working "
                "directory"
            ) from None
        found = ", ".join(sorted(str(p) for p in path.parent.glob("*.y*ml"))) or "no recipe"
        raise RecipeError(f"there is no recipe {path}; that folder holds: {found}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read recipe {path}: {error}") from error


def _parse_yaml(text: str, where: str) -> dict[str, Any]:
    try:
        document = read_yaml(text, _RecipeLoader)
    except YamlError as error:
        raise RecipeError(f"{where} is not YAML: {error}") from error
    if document is None:
        raise RecipeError(f"{where} is empty; a recipe is a mapping, as in docs/guides/training.md")
    if not isinstance(document, dict):
        raise RecipeError(f"{where} holds a {type(document).__name__}; a recipe is a mapping")
    return document


def _call_function(source: str) -> dict[str, Any]:
    recipe = call_named(load_target(source, "recipe"), f"recipe {source}")
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"{source} returned a {type(recipe).__name__}; return a training Recipe")
    return recipe.document()


def _apply(document: dict[str, Any], override: str) -> None:
    """Sets one value in place; missing keys are created, and validated later."""
    path, equals, text = override.partition("=")
    parts = path.strip().split(".")
    what = f"--set {override!r}"
    if not equals or not all(parts):
        raise RecipeError(f"{what} is not of the form a.b=c, as in optim.adamw.lr=1e-3")
    set_value(document, parts, parse_value(text, what), what)


def parse_value(text: str, what: str) -> Any:
    """Parses a value with the YAML rules of recipes.

    Args:
        text: YAML text.
        what: source of the value, for messages.

    Raises:
        RecipeError: the text is not YAML.
    """
    try:
        return read_yaml(text, _RecipeLoader)
    except YamlError as error:
        raise RecipeError(f"{what}: the value is not YAML: {error}") from error


def set_value(document: dict[str, Any], parts: Sequence[str], value: Any, what: str) -> None:
    """Sets one value in place; missing keys are created, and validated later.

    Args:
        document: document of a recipe.
        parts: path of keys; a part may also be a list position.
        value: value to set.
        what: source of the value, for messages.

    Raises:
        RecipeError: a part is not a position of its list, or its parent has no keys.
    """
    place: Any = document
    for position, part in enumerate(parts):
        here = ".".join(parts[:position])
        if isinstance(place, list):
            key: int | str = _index(part, place, here, what)
        elif isinstance(place, dict):
            key = part
            if place.get(part) is None:
                place[part] = {}
        else:
            raise RecipeError(f"{what}: '{here}' is {place!r}, which has no keys")
        if position == len(parts) - 1:
            place[key] = value
        else:
            place = place[key]


def _index(part: str, place: list[Any], here: str, what: str) -> int:
    if not part.isdecimal() or int(part) >= len(place):
        raise RecipeError(
            f"{what}: '{here}' is a list; give a position from 0 to {len(place) - 1}, not '{part}'"
        )
    return int(part)


def validate_recipe(document: dict[str, Any], where: str) -> Recipe:
    """Validates a document and returns its recipe.

    Args:
        document: plain YAML values.
        where: source of the document, for messages.

    Raises:
        RecipeError: the document has an unknown key or a bad value.
    """
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{where}: {explain(error, Recipe)}") from error
