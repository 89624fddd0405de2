"""Grants of callers: scopes, each on the models that match a pattern. Pure rules.

In: texts such as `infer:digits*`, from the file of keys or the claims of a token. Out: `Grant`s.
A scope alone, such as `train`, covers all models.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from flambeau.protocol.strict import nearest_name

Scope = Literal["infer", "manage", "train"]
"""`infer`: requests and jobs; `manage`: metadata, loading, settings; `train`: training jobs."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
_MODELS = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")


@dataclass(frozen=True, slots=True)
class Grant:
    """One scope on some models."""

    scope: Scope
    models: str
    """A case-sensitive shell pattern (`fnmatch`): `*`, `?` and `[ab]`."""

    def __str__(self) -> str:
        return f"{self.scope}:{self.models}"

    def covers(self, model: str) -> bool:
        """Returns True if a model matches the pattern."""
        return fnmatchcase(model, self.models)


def parse_grant(text: str) -> Grant:
    """Parses `SCOPE` or `SCOPE:MODELS`.

    Raises:
        ValueError: it is neither; the message names the nearest scope.
    """
    scope, separator, models = text.partition(":")
    found = next((known for known in SCOPES if known == scope), None)
    if found is None:
        raise ValueError(
            f"'{text[:60]}' does not begin with a scope{nearest_name(scope, SCOPES)}; "
            "write one as in infer:digits*"
        )
    if separator and not _MODELS.fullmatch(models):
        raise ValueError(f"'{text[:60]}' names no models; write a pattern, as in infer:digits*")
    return Grant(found, models or "*")
