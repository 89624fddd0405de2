"""A part of a recipe in which one key names the thing, as in `optim: {sgd: {...}}`. Pure.

Rules kept here: two names are an error, no name takes the first choice, or is an error where there
is no usual one, and the resolved recipe holds the chosen name with its defaults and none of the
others. An entry of a list, as in `preprocess: [{scale: {}}]`, has one key and nothing beside it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from training.recipe.parts.recipe_part import RecipePart


class OneOf(RecipePart):
    """Exactly one of `choices`, which are fields with the default None, is given."""

    choices: ClassVar[tuple[str, ...]] = ()
    """The names that exclude each other."""
    first_by_default: ClassVar[bool] = True
    """Whether the first is taken, with its defaults, where none is given."""

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
                return data  # a misspelt name, which is told as any unknown key
            raise ValueError(f"nothing is named; give one of {', '.join(cls.choices)}")
        return data if given else {**data, cls.choices[0]: {}}

    @model_serializer(mode="wrap")
    def _without_the_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        others = set(self.choices) - {self.choice}
        return {name: value for name, value in document.items() if name not in others}

    @property
    def choice(self) -> str:
        """The name that is given."""
        return next(name for name in self.choices if getattr(self, name) is not None)

    @property
    def chosen(self) -> Any:
        """What stands under that name."""
        return getattr(self, self.choice)


class OneKey(RecipePart):
    """An entry of a list: exactly one of its fields is given, and all of them default to None.

    Fields are made with `exclude_if`, so that in the stored recipe the entry is its one key again.
    """

    entry_name: ClassVar[str] = "an entry"
    """What messages call it."""

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
        """Its one key."""
        return next(n for n in type(self).model_fields if getattr(self, n) is not None)
