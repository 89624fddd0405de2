"""Protobuf's text format: the forms that configurations use, and limits of depth and number."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.importing.sources.triton.protobuf_text import (
    MAX_DEPTH,
    Message,
    TextFormatError,
    parse_text_format,
)


def test_all_forms_of_fields() -> None:
    found = parse_text_format(
        """
        name: "a" 'b'  # two texts join
        max_batch_size: 8,
        input [ { name: "x" dims: [ -1, 4 ] }, { name: "y\\n" dims: 3 dims: 4 } ];
        output < name: "z" >
        eager { on: true }
        share: 0.5f
        mask: 0x10
        """
    )
    assert found.text("name") == "ab"
    assert found.numbers("max_batch_size") == [8]
    first, second = found.messages("input")
    assert (first.text("name"), first.numbers("dims")) == ("x", [-1, 4])
    assert (second.text("name"), second.numbers("dims")) == ("y\n", [3, 4])
    assert found.messages("output")[0].text("name") == "z"
    assert found.messages("eager")[0].is_set("on")
    assert found.fields["share"] == [0.5]
    assert found.numbers("mask") == [16]


def test_an_empty_text_is_an_empty_message() -> None:
    assert parse_text_format("# nothing\n") == Message()


@pytest.mark.parametrize(
    "text", ["name", "name: ", "a {", "a }", "a [1 2]", "a: [", "1: 2", 'a: "x', "a: @", "a: <}"]
)
def test_broken_texts_are_refused(text: str) -> None:
    with pytest.raises(TextFormatError):
        parse_text_format(text)


def test_depth_and_number_are_limited() -> None:
    with pytest.raises(TextFormatError, match="nested"):
        parse_text_format("a {" * 100_000)
    parse_text_format("a {" * MAX_DEPTH + "}" * MAX_DEPTH)
    with pytest.raises(TextFormatError, match="words and marks"):
        parse_text_format("a: 1\n" * 100_000)
    with pytest.raises(TextFormatError):
        parse_text_format("a: [" * 100_000)


@given(st.text(alphabet='ab{}[]<>:,;"\\ \n#1-.', max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(TextFormatError):
        parse_text_format(text)
