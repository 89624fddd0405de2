"""A pydantic base model whose errors name the key, the value and the nearest valid name.

Manifests, recipes and server configuration come from people or from other machines. One rule holds
for all: an unknown key or a bad value is an error with a readable message, and never ignored.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

_MAPPING = "write a mapping, as in {{key: value}}"
_WORDS = {
    "string_type": "write text",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_parsing_size": "write a whole number of fewer digits",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "finite_number": "write a finite number",
    "greater_than": "write a number above {gt}",
    "greater_than_equal": "write {ge} or more",
    "less_than": "write a number below {lt}",
    "less_than_equal": "write {le} or less",
    "literal_error": "write {expected}",
    "string_too_short": "write at least {min_length} characters",
    "string_too_long": "write at most {max_length} characters",
    "too_short": "give at least {min_length} of them",
    "too_long": "give at most {max_length} of them",
    "invalid_key": "write its name as text",
}
"""Remedy for a wrong value, by pydantic's name of the error; braces take the error's context."""
_ALTERNATIVE = re.compile(r"(constrained-)?(int|float|bool|str)|literal\[.*\]")
"""Pydantic's name of one of the types that a value may have, as the last part of its place."""
MAX_EXPLAINED = 5
"""Faults that a message describes; the rest are counted."""
MAX_FAULTS = 200
"""Faults beyond which none is described: each costs several microseconds to look up."""
MAX_NAME = 128
"""Longest name, in characters, that is compared with the known names."""

_short_repr = reprlib.Repr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = 80


class StrictModel(BaseModel):
    """Base model that is frozen and forbids unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


@dataclass(frozen=True)
class Matching:
    """Annotation of text that must match a pattern, which says in words what to write."""

    pattern: str
    wanted: str
    """The remedy, after "write"."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Returns the validator."""
        text = core_schema.str_schema(pattern=self.pattern)
        return core_schema.custom_error_schema(
            text, custom_error_type="matching", custom_error_message=f"write {self.wanted}"
        )


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` for the closest known name, or the list of known names."""
    names = sorted(known) if len(name) <= MAX_NAME else []
    close = difflib.get_close_matches(name, names, n=1)
    # Two swapped letters are half of a short name, which the similarity ratio rejects.
    close = close or [known for known in names if sorted(known) == sorted(name)]
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(names)})" if names else ""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Formats a validation error as `'a.b' is VALUE: the fault and the remedy`, joined by `;`.

    Args:
        error: the error that pydantic raised.
        model: the model that was validated, to look up its field names.
    """
    count = error.error_count()
    if count > MAX_FAULTS:
        return f"{count:,} of its keys and values are wrong, so it is a different kind of document"
    details = error.errors(include_url=False)
    faults = _alternatives_joined(details)
    told = [_explain_one(fault, model) for fault in faults[:MAX_EXPLAINED]]
    more = [f"and {len(faults) - MAX_EXPLAINED} more"] if len(faults) > MAX_EXPLAINED else []
    return "; ".join([*told, *more])


def _alternatives_joined(details: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the faults, those of one value that fits none of several types as one fault."""
    found: list[dict[str, Any]] = []
    for detail in details:
        loc = detail["loc"]
        if len(loc) > 1 and _ALTERNATIVE.fullmatch(str(loc[-1])):
            words = _what_to_write(detail) or str(detail["msg"])
            before = found[-1] if found else None
            if before is not None and before["loc"] == loc[:-1] and "either" in before:
                before["either"].append(words.removeprefix("write "))
            else:
                found.append({**detail, "loc": loc[:-1], "either": [words]})
        else:
            found.append(dict(detail))
    return found


def _explain_one(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    path = [_shortened(str(part)) for part in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        where = f" in '{'.'.join(path[:-1])}'" if path[:-1] else ""
        return f"unknown key '{path[-1]}'{where}{nearest_name(path[-1], known)}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    place = ".".join(path) or "(whole)"
    if detail["type"] == "missing":
        return f"'{place}' is missing"
    if detail["type"] == "value_error" and not path:  # the message names the keys itself
        return message
    if "either" in detail:
        message = ", or ".join(dict.fromkeys(detail["either"]))
    else:
        message = f"{_what_to_write(detail) or message}{_nearest_value(detail)}"
    if detail["input"] is None and _has_default(model, path):
        message += f", or leave '{path[-1]}' out for its default"
    return f"'{place}' is {_short(detail['input'])}: {message}"


def _what_to_write(detail: Mapping[str, Any]) -> str | None:
    """Returns a remedy that replaces pydantic's message, which refers to Python types."""
    value, kind = detail["input"], str(detail["type"])
    if kind in ("tuple_type", "list_type"):
        alone = isinstance(value, str | int | float)
        return f"write a list, as in [{_shortened(str(value)) if alone else 'a, b'}]"
    if kind == "string_type" and callable(value):
        name = getattr(value, "__name__", "Name")
        module = getattr(value, "__module__", "package.module")
        return f"write its location, as text: path/file.py:{name} or {module}:{name}"
    words = _WORDS.get(kind)
    return words and words.format(**{name: _whole(v) for name, v in detail.get("ctx", {}).items()})


def _whole(value: object) -> object:
    """Returns a number without a fraction of 0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _nearest_value(detail: Mapping[str, Any]) -> str:
    """Returns a hint with the closest allowed value of a `Literal`; empty if none is close."""
    value = detail["input"]
    if detail["type"] != "literal_error" or not isinstance(value, str) or len(value) > MAX_NAME:
        return ""
    words = re.findall("'([^']*)'", detail["ctx"]["expected"])
    close = difflib.get_close_matches(detail["input"], words, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _short(value: object) -> str:
    return "null" if value is None else _shortened(_short_repr.repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Returns the field names of the nested models that a location points into."""
    found = _models_at(model, path)
    return [f.alias or name for one in found for name, f in one.model_fields.items()]


def _has_default(model: type[BaseModel], path: list[str]) -> bool:
    """Returns True if a key may be omitted."""
    fields = [f for one in _models_at(model, path[:-1]) for f in _field(one, path[-1:])]
    return bool(fields) and not any(field.is_required() for field in fields)


def _field(model: type[BaseModel], path: list[str]) -> list[FieldInfo]:
    """Returns the field of a key, if the model has it."""
    return [f for name, f in model.model_fields.items() if [f.alias or name] == path]


def _models_at(model: type[BaseModel], path: list[str]) -> list[type[BaseModel]]:
    """Returns the nested models that a location points into."""
    current: list[type[BaseModel]] = [model]
    for part in path:
        fields = [m.model_fields[part].annotation for m in current if part in m.model_fields]
        if fields:  # other parts are list indexes, dictionary keys or the tags of a union
            current = [found for field in fields for found in _models_in(field)]
    return current


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]
