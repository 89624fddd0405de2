"""Grants of callers: scopes, each on the models that match a pattern. Pure rules.

In: texts such as `infer:digits*`, from the file of keys or the claims of a token. Out: `Grant`s.
A scope alone, such as `train`, covers all models. `promote:digits*@canary` covers one alias.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from flambeau.protocol.strict import nearest_name

Scope = Literal["infer", "manage", "train", "read", "push", "promote", "delete"]
"""`infer`: requests and jobs; `manage`: metadata, loading, settings; `train`: training jobs. Of the
registry: `read` versions and their files; `push` versions, tags and descriptions; `promote`: move
aliases; `delete` versions."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
REGISTRY_SCOPES: tuple[Scope, ...] = ("read", "push", "promote", "delete")
ALL_MODELS = "*"
"""Stands for all models where one is named; no model has this name."""
_MODELS = re.compile(r"(?=.{1,128}\Z)(?:[A-Za-z0-9._*?!-]|\[[A-Za-z0-9._*?!-]+\])+")
"""A pattern; a bracket that is not closed would match itself, which no name contains."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One scope on some models."""

    scope: Scope
    models: str
    """A case-sensitive shell pattern (`fnmatch`): `*`, `?` and `[ab]`."""
    aliases: str = "*"
    """Pattern of the aliases that `promote` moves; other scopes have none."""

    def __str__(self) -> str:
        aliases = "" if self.aliases == "*" else f"@{self.aliases}"
        return f"{self.scope}:{self.models}{aliases}"

    def covers(self, model: str) -> bool:
        """Returns True if a model matches the pattern; `ALL_MODELS` needs one that covers all."""
        if model == ALL_MODELS:
            return not self.models.strip("*")
        return fnmatchcase(model, self.models)

    def moves(self, alias: str) -> bool:
        """Returns True if an alias matches the pattern; an empty one stands for any of them."""
        return not alias or fnmatchcase(alias, self.aliases)


def parse_grant(text: str) -> Grant:
    """Parses `SCOPE`, `SCOPE:MODELS` or `promote:MODELS@ALIASES`.

    Raises:
        ValueError: it is neither; the message names the nearest scope.
    """
    scope, separator, rest = text.partition(":")
    models, at, aliases = rest.partition("@")
    found = next((known for known in SCOPES if known == scope), None)
    if found is None:
        raise ValueError(
            f"'{text[:60]}' does not begin with a scope{nearest_name(scope, SCOPES)}; "
            "write one as in infer:digits*"
        )
    if separator and not _MODELS.fullmatch(models):
        raise ValueError(
            f"'{text[:60]}' names no models; write a pattern, as in infer:digits* or infer:v[12]"
        )
    if at and found != "promote":
        raise ValueError(
            f"'{text[:60]}' names aliases, which only promote moves; leave '@{aliases[:40]}' out"
        )
    if at and not _MODELS.fullmatch(aliases):
        raise ValueError(
            f"'{text[:60]}' names no aliases; write a pattern, as in promote:digits*@canary"
        )
    return Grant(found, models or ALL_MODELS, aliases or "*")


def parse_aliases(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Parses patterns of aliases, such as `digits*@production`, as grants that move them.

    Without `@ALIASES`, a pattern covers all aliases of its models. None begins with a bracket: it
    is a list that was written into an option, which would cover nothing.

    Raises:
        ValueError: one is no pattern.
    """
    found = []
    for text in texts:
        try:
            if text.startswith("["):
                raise ValueError(f"{text[:60]!r} begins with a bracket")
            found.append(parse_grant(f"promote:{text}"))
        except ValueError as error:
            plain = re.sub(r"[^A-Za-z0-9._*?@-]", "", text[:60]) or "digits*@production"
            raise ValueError(
                f"{error}; write {plain}, each pattern as an option of its own, and a list in "
                f'--set or a file alone, as ["{plain}"]'
            ) from error
    return tuple(found)


def is_moved_by(grants: Iterable[Grant], model: str, alias: str) -> bool:
    """Returns True if one of the grants of `promote` covers an alias of a model."""
    return any(one.covers(model) and one.moves(alias) for one in grants)
