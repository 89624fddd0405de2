"""`python -m training.recipe.reference`: writes `docs/reference/recipe.md` from the schema.

In: the JSON Schema (`training.recipe.schema`). Out: a section for each part of a recipe, in recipe
order, with a table of its keys: type and limits, default, and the docstring of the field in the
code. The same schema gives the same page.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from training.recipe.parts.one_of import OneOf
from training.recipe.schema import recipe_schema

PAGE = Path(__file__).parents[2] / "docs/reference/recipe.md"
ROOT = "Recipe"
INTRODUCTION = """\
# Every key of a recipe

Made by `make docs` from the schema; what it is all for is in [training](../guides/training.md). A
key of a part is written with dots, as `--set` takes it; `N` is a place in a list, counted from 0,
and `NAME` a name of yours. What has no default must be given.

`flambeau train schema > recipe.schema.json` writes the JSON Schema, and a training service serves
it at `/v1/recipe.schema.json`. Editors that use it complete the keys, show the help below and mark
errors; those with yaml-language-server need this first line in a recipe:

```yaml
# yaml-language-server: $schema=recipe.schema.json
```
"""
HEAD = "| key | type and limits | default | meaning, and when to change it |\n|---|---|---|---|"
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true` or `false`",
    "null": "`null`",
}
ANYTHING = "anything"
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TELLING = ("kind", "precision", "method")
"""Keys that distinguish the entries of one list."""


def reference(schema: Mapping[str, Any]) -> str:
    """Renders the page.

    Args:
        schema: JSON Schema of recipes.
    """
    parts = {ROOT: schema, **schema["$defs"]}
    sections = [_section(name, paths, parts[name], parts) for name, paths in _places(parts).items()]
    return "\n".join([INTRODUCTION, *sections])


def _places(parts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the recipe paths of each part, in the order of their first appearance."""
    found: dict[str, list[str]] = {}

    def visit(name: str, path: str) -> None:
        first = name not in found
        paths = found.setdefault(name, [])
        if path not in paths:
            paths.append(path)
        if first:
            for key, field in parts[name].get("properties", {}).items():
                for inner, place in _inner(field, f"{path}.{key}".lstrip(".")):
                    if "properties" in parts[inner]:
                        visit(inner, place)

    visit(ROOT, "")
    return found


def _inner(field: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the parts that a field may hold, each with its path."""
    if "$ref" in field:
        yield _name(field), path
    for choice in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _inner(choice, path)
    if isinstance(field.get("items"), dict):
        yield from _inner(field["items"], f"{path}.N")
    if isinstance(field.get("additionalProperties"), dict):
        yield from _inner(field["additionalProperties"], f"{path}.NAME")


def _section(name: str, paths: list[str], part: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Renders a heading, the description and the keys of a part; exclusive choices come first.

    Args:
        name: name of the part.
        paths: paths of the part in a recipe.
        part: schema of the part.
        parts: all schemas, by name.
    """
    fields, required = part["properties"], part.get("required", ())
    rows = {key: _row(key, field, key in required, parts) for key, field in fields.items()}
    choices = _choices().get(name)
    if choices is None:
        tables = [_table(rows.values())]
    else:
        first = "" if choices[1] is None else f", `{choices[1]}` unless given"
        named = [_row(key, _without_null(fields[key]), True, parts) for key in choices[0]]
        tables = [f"One of these{first}:", "", _table(named)]
        others = [row for key, row in rows.items() if key not in choices[0]]
        tables += ["", "In addition:", "", _table(others)] if others else []
    title = ", ".join(f"`{path}`" for path in paths) if paths != [""] else "The whole"
    telling = _telling(part)
    level = "##" if all("." not in path for path in paths) else "###"
    heading = f"{level} {title}{f' ({telling})' if telling else ''}"
    words = " ".join(part["description"].split())
    return "\n".join([f'<a id="{name}"></a>', "", heading, "", words, "", *tables, ""])


def _table(rows: Iterable[str]) -> str:
    return "\n".join([HEAD, *rows])


def _choices() -> dict[str, tuple[tuple[str, ...], str | None]]:
    """Returns for each part that is a choice its names and its default, None if it has none."""
    found, left = {}, list(OneOf.__subclasses__())
    while left:
        part = left.pop()
        left += part.__subclasses__()
        found[part.__name__] = (part.choices, part.choices[0] if part.first_by_default else None)
    return found


def _row(key: str, field: Mapping[str, Any], required: bool, parts: Mapping[str, Any]) -> str:
    default = "" if required else _default(field)
    words = " ".join(field["description"].split())
    cells = [f"`{key}`", _type(field, parts), default, words]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(field: Any, parts: Mapping[str, Any]) -> str:
    """Describes the type and limits of a field."""
    if "$ref" in field:
        name = _name(field)
        if "properties" not in parts[name]:
            return ANYTHING
        return f"[{_telling(parts[name]) or 'keys'}](#{name})"
    if "anyOf" in field or "oneOf" in field or "enum" in field:
        return _listed(list(_alternatives(field, parts)))
    if "const" in field:
        return f"`{field['const']}`"
    kind = field.get("type")
    if kind == "array":
        return _list_type(field, parts)
    if kind == "object":
        inner = field.get("additionalProperties", True)
        found = _type(inner, parts) if isinstance(inner, dict) else ANYTHING
        return "mapping" if found == ANYTHING else f"mapping; each value: {found}"
    return ", ".join([TYPES[kind], *_limits(field)]) if kind else ANYTHING


def _alternatives(field: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[str]:
    for value in field.get("enum", ()):
        yield f"`{value}`"
    for choice in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        if {"anyOf", "oneOf", "enum"} & {*choice}:
            yield from _alternatives(choice, parts)
        else:
            yield _type(choice, parts)


def _list_type(field: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    if "prefixItems" in field:
        return f"[{', '.join(_type(each, parts) for each in field['prefixItems'])}]"
    least = f", at least {field['minItems']}" if "minItems" in field else ""
    return f"list{least}; each: {_type(field['items'], parts)}"


def _limits(field: Mapping[str, Any]) -> Iterator[str]:
    for name, sign in LIMITS.items():
        if name in field:
            yield f"{sign} {field[name]:,}" if field[name] >= 1000 else f"{sign} {field[name]:g}"
    if field.get("minLength") == 1:
        yield "not empty"
    if "maxLength" in field:
        yield f"at most {field['maxLength']} characters"
    if "pattern" in field:
        yield f"like `{field['pattern']}`"


def _listed(words: list[str]) -> str:
    once = list(dict.fromkeys(words))
    return once[0] if len(once) == 1 else f"{', '.join(once[:-1])} or {once[-1]}"


def _without_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a choice's field without its null alternative."""
    given = [choice for choice in field["anyOf"] if choice.get("type") != "null"]
    return {**field, "anyOf": given}


def _default(field: Mapping[str, Any]) -> str:
    """Describes the default briefly: for a part only its choice, as its keys have own defaults."""
    value = field.get("default")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        told = [", ".join(f"{key}: {one[key]}" for key in TELLING[:2]) for one in value]
        return f"`[{', '.join(f'{{{one}}}' for one in told)}]`"
    if isinstance(value, dict) and value:
        choices = {key for names, _ in _choices().values() for key in names}
        named = [key for key in value if key in choices]
        inner = value[named[0]] if named else None
        scalar = isinstance(inner, int | float)
        return "its keys' own" if not named else f"`{named[0]}{f': {inner:g}' if scalar else ''}`"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _telling(part: Mapping[str, Any]) -> str:
    """Lists the keys with one fixed value, which identify an entry of a list."""
    fields = part.get("properties", {})
    return ", ".join(
        f"{key}: {fields[key]['const']}"
        for key in TELLING
        if key in fields and "const" in fields[key]
    )


def _name(field: Mapping[str, Any]) -> str:
    return str(field["$ref"]).rpartition("/")[2]


if __name__ == "__main__":
    PAGE.write_text(reference(recipe_schema()))
    print(f"wrote {PAGE}")
