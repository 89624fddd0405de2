"""A part of a recipe in which one key selects the choice, as in `optim: {sgd: {...}}`. Pure.

Rules: two choices are an error; without one the first is the default, or it is an error if the part
has no default; the resolved recipe holds the selected choice with its defaults and none of the
others. An entry of a list, as in `preprocess: [{scale: {}}]`, has exactly one key.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from training.recipe.parts.recipe_part import RecipePart


class OneOf(RecipePart):
    """A part with exactly one of `choices`, which are fields with the default None."""

    choices: ClassVar[tuple[str, ...]] = ()
    """Names that exclude each other."""
    first_by_default: ClassVar[bool] = True
    """True if the first choice, with its defaults, applies when none is given."""

    @model_validator(mode="before")
    @classmethod
    def _name_one(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        named = [choice for choice in cls.choices if choice in data]
        given = [choice for choice in named if data[choice] is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; keep one, or set one null")
        if named and not given:
            raise ValueError(f"'{named[0]}' is empty; write {named[0]}: {{}} for its defaults")
        if not (given or cls.first_by_default):
            if set(data) - set(cls.model_fields):
                return data  # a misspelt name, which is reported like any unknown key
            raise ValueError(f"nothing is named; give one of {', '.join(cls.choices)}")
        return data if given else {**data, cls.choices[0]: {}}

    @model_serializer(mode="wrap")
    def _without_the_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        others = set(self.choices) - {self.choice}
        return {name: value for name, value in document.items() if name not in others}

    @property
    def choice(self) -> str:
        """Name of the selected choice."""
        return next(name for name in self.choices if getattr(self, name) is not None)

    @property
    def chosen(self) -> Any:
        """Value of the selected choice."""
        return getattr(self, self.choice)


class OneKey(RecipePart):
    """An entry of a list with exactly one of its fields; all of them default to None.

    Fields are declared with `exclude_if`, so that the stored recipe has only the one key again.
    """

    entry_name: ClassVar[str] = "an entry"
    """Name of the entry in messages."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{self.entry_name} has exactly one key, and this one has {given or 'none'}; "
                f"give one of {', '.join(type(self).model_fields)}"
            )
        return self

    @property
    def name(self) -> str:
        """Name of the one key."""
        return next(n for n in type(self).model_fields if getattr(self, n) is not None)
