"""A pydantic base whose errors name the key, the value and the nearest right name.

Manifests, recipes and server configuration all come from people or from other machines, and all
share one rule: an unknown key or a bad value is an error in words, never ignored.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError


class StrictModel(BaseModel):
    """Frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` for the closest known name, or the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(names)})" if names else ""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Turns a validation error into lines `a.b: what was wrong, the value, what to do`.

    Args:
        error: what pydantic raised.
        model: the model that was validated, to look up the names it knows.
    """
    return "; ".join(_explain_one(dict(detail), model) for detail in error.errors())


def _explain_one(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    path = [str(part) for part in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        where = f" in '{'.'.join(path[:-1])}'" if path[:-1] else ""
        return f"unknown key '{path[-1]}'{where}{nearest_name(path[-1], known)}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    place = ".".join(path) or "(whole)"
    if detail["type"] == "missing":
        return f"'{place}' is missing"
    if detail["type"] == "value_error" and not path:  # it names the keys itself
        return message
    return f"'{place}' is {_short(detail['input'])}: {message}{_nearest_value(detail)}"


def _nearest_value(detail: Mapping[str, Any]) -> str:
    """The closest of a few words of which one was to be given, if one is close."""
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return ""
    words = re.findall("'([^']*)'", detail["ctx"]["expected"])
    close = difflib.get_close_matches(detail["input"], words, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The field names of the nested model that a location points into."""
    current: list[type[BaseModel]] = [model]
    for part in path:
        fields = [m.model_fields[part].annotation for m in current if part in m.model_fields]
        if fields:  # other parts are list indexes, dictionary keys or the tags of a union
            current = [found for field in fields for found in _models_in(field)]
    return [f.alias or name for found in current for name, f in found.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]
