"""Errors for values of a wrong type state the right form, without Python terms."""

from typing import Any

import pytest
from pydantic import Field, ValidationError

from flambeau.protocol.strict import (
    MAX_EXPLAINED,
    MAX_FAULTS,
    MAX_NAME,
    StrictModel,
    explain,
    nearest_name,
)


class Inner(StrictModel):
    number: int = 0


class Outer(StrictModel):
    text: str = ""
    texts: tuple[str, ...] = ()
    parts: dict[str, int] = Field(default={})
    inner: Inner = Inner()
    share: float = 0.0
    flag: bool = False


class Needing(StrictModel):
    inner: Inner


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text": 3}, "'text' is 3: write text"),
        ({"text": Inner}, "text: path/file.py:Inner or tests.unit.protocol.test_strict:Inner"),
        ({"texts": "all"}, "'texts' is 'all': write a list, as in [all]"),
        ({"texts": {"a": 1}}, "'texts' is {'a': 1}: write a list, as in [a, b]"),
        ({"parts": [1]}, "'parts' is [1]: write a mapping, as in {key: value}"),
        ({"inner": 3}, "'inner' is 3: write a mapping, as in {key: value}"),
        ({"inner": {"number": "x"}}, "'inner.number' is 'x': write a whole number"),
        ({"inner": {"number": 1.5}}, "'inner.number' is 1.5: write a whole number"),
        ({"share": "half"}, "'share' is 'half': write a number"),
        ({"flag": "maybe"}, "'flag' is 'maybe': write true or false"),
    ],
)
def test_the_message_says_what_to_write(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate(given)
    assert words in explain(refused.value, Outer)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (Outer, {"inner": None}, "'inner' is null: write a mapping, as in {key: value}, or leave "
                                 "'inner' out for its default"),
        (Outer, {"inner": {"number": None}}, "'inner.number' is null: write a whole number, or "
                                             "leave 'number' out for its default"),
        (Needing, {"inner": None}, "'inner' is null: write a mapping, as in {key: value}"),
    ],
)  # fmt: skip
def test_null_is_told_as_it_is_written(
    model: type[StrictModel], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(given)
    assert explain(refused.value, model) == words


def test_letters_in_another_order_are_near() -> None:
    assert nearest_name("rl", ["lr", "eps", "betas"]) == " (did you mean 'lr'?)"
    assert nearest_name("epocsh", ["epochs", "eps"]) == " (did you mean 'epochs'?)"
    assert nearest_name("zz", ["lr", "eps"]) == " (known: eps, lr)"


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (MAX_NAME, f"'{'k' * MAX_NAME}' (known: "),
        (MAX_NAME + 1, f"'{'k' * (MAX_NAME - 3)}...' (known: "),
    ],
)
def test_unknown_key_is_shortened_beyond_a_length(length: int, shown: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate({"k" * length: 1})
    assert explain(refused.value, Outer).startswith(f"unknown key {shown}")


@pytest.mark.parametrize(
    ("length", "hint"),
    [(MAX_NAME, " (did you mean 'mmm"), (MAX_NAME + 1, "")],
)
def test_name_beyond_a_length_is_compared_with_none(length: int, hint: str) -> None:
    found = nearest_name("m" * (length - 1) + "x", ["m" * length])
    assert found[: len(" (did you mean 'mmm")] == hint


@pytest.mark.parametrize(
    ("faults", "told", "end"),
    [
        (MAX_EXPLAINED, MAX_EXPLAINED, "write a whole number"),
        (MAX_EXPLAINED + 1, MAX_EXPLAINED + 1, "; and 1 more"),
        (MAX_FAULTS, MAX_EXPLAINED + 1, f"; and {MAX_FAULTS - MAX_EXPLAINED} more"),
        (MAX_FAULTS + 1, 1, "201 of its keys and values are wrong, so it is a different kind of "
                            "document"),
    ],
)  # fmt: skip
def test_the_first_faults_are_told_and_the_others_counted(faults: int, told: int, end: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate({"parts": {str(number): "x" for number in range(faults)}})
    words = explain(refused.value, Outer)
    assert words.endswith(end)
    assert len(words.split("; ")) == told
