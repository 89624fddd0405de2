"""Scopes of the registry: by model, and by alias."""

import pytest

from services.access.caller import Principal
from services.access.grants import Grant, parse_aliases, parse_grant
from services.errors import ForbiddenError, ServingError, UnknownModelError
from services.registry.registry_access import RegistryAccess, RegistryMode
from tests.fixtures.principals import principal


def test_a_grant_of_promotion_names_aliases() -> None:
    found = parse_grant("promote:digits*@canary-?")
    assert found == Grant("promote", "digits*", "canary-?")
    assert str(found) == "promote:digits*@canary-?"
    assert [found.moves(one) for one in ("canary-1", "production", "")] == [True, False, True]
    assert str(parse_grant("promote:x")) == "promote:x"


@pytest.mark.parametrize(
    ("pattern", "covers_all"),
    [("*", True), ("**", True), ("?", False), ("[*]", False), ("[!a]", False), ("a*", False)],
)
def test_all_models_need_a_pattern_that_covers_all(pattern: str, covers_all: bool) -> None:
    """A pattern of one character matches the name `*`, which stands for all models."""
    caller = principal(f"manage:{pattern}").caller
    assert caller is not None
    assert caller.may("manage", "*") is covers_all
    assert caller.sees_all() is covers_all


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("push:digits@canary", "only promote moves"),
        ("promote:digits@", "names no aliases"),
        ("promote:digits@a@b", "names no aliases"),
        ("promote:@canary", "names no models"),
        ("pull:digits", "does not begin with a scope"),
        ("read:[digits", "names no models"),
        ("read:digits]", "names no models"),
        ("read:[]", "names no models"),
        ("promote:digits@[live", "names no aliases"),
        ("read:" + "a" * 129, "names no models"),
    ],
)
def test_grants_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_grant(text)


@pytest.mark.parametrize(
    "text", ["[victim*@production]", "[victim]", "[ab]*@production", "victim*@production]"]
)
def test_a_list_in_an_option_is_no_pattern_of_aliases(text: str) -> None:
    with pytest.raises(ValueError, match=r"write (victim|ab)\*?[@a-z]*, each pattern as an option"):
        parse_aliases([text])
    assert parse_aliases(["victim*@production"]) == (Grant("promote", "victim*", "production"),)


@pytest.mark.parametrize(
    ("grants", "call", "refusal"),
    [
        (("read:digits",), ("read", "digits"), None),
        (("read:digits",), ("read", "mnist"), UnknownModelError),
        (("infer:*", "manage:*", "train:*"), ("read", "digits"), UnknownModelError),
        (("read:digits",), ("push", "digits"), ForbiddenError),
        (("push:*",), ("push", "digits"), None),
        (("push:*",), ("delete", "digits"), ForbiddenError),
        (("delete:dig*",), ("delete", "digits"), None),
        (("promote:digits@canary",), ("promote", "digits", "canary"), None),
        (("promote:digits@canary",), ("promote", "digits", "production"), ForbiddenError),
        (("promote:digits",), ("promote", "digits", "production"), None),
    ],
)
def test_calls_need_their_scope(
    grants: tuple[str, ...], call: tuple[str, ...], refusal: type[ServingError] | None
) -> None:
    access = RegistryAccess(mode="granted", is_closed=False)
    if refusal is None:
        access.require(principal(*grants), *call)  # type: ignore[arg-type]
        return
    with pytest.raises(refusal):
        access.require(principal(*grants), *call)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "is_closed", "may"),
    [
        ("granted", False, {"read"}),
        ("open", False, {"read", "push", "promote", "delete"}),
        ("granted", True, set()),
        ("open", True, set()),
    ],
)
def test_strangers_only_read_unless_the_setting_opens_more(
    mode: RegistryMode, is_closed: bool, may: set[str]
) -> None:
    access = RegistryAccess(mode=mode, is_closed=is_closed)
    found = set()
    for scope in ("read", "push", "promote", "delete"):
        try:
            access.require(Principal(None, "::1"), scope, "digits")
        except ForbiddenError:
            continue
        found.add(scope)
    assert found == may
    assert access.sees(Principal(None, "::1"), "digits") is not is_closed
