"""Untrusted YAML yields a document or one kind of error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store import yaml_text
from model_store.yaml_text import MAX_DEPTH, MAX_MARKS, YamlError, read_yaml

BOMB = "a0: &a0 [1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)
)


def chain(link: str, length: int = 4000) -> str:
    """Returns values of which each has the one before, which the link names by its number."""
    links = (f"a{n + 1}: &a{n + 1} {link.format(n=n)}\n" for n in range(length))
    return "a0: &a0 {x: 1}\n" + "".join(links)


def test_what_is_right_is_read() -> None:
    assert read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    merged = read_yaml("a: &a {x: 1}\nb: {<<: [*a, {y: 2}], z: 3}")
    assert merged["b"] == {"x": 1, "y": 2, "z": 3}
    assert read_yaml("a: &x [1, two]\nb: *x\n") == {"a": [1, "two"], "b": [1, "two"]}
    assert read_yaml("") is None


def test_the_largest_whole_numbers_are_read() -> None:
    assert read_yaml("0x" + "f" * 256) == 2**1024 - 1


def test_as_many_separators_as_are_allowed_are_read() -> None:
    assert read_yaml("x" + "\n" * MAX_MARKS) == "x"


@pytest.mark.parametrize("text", ["[1, 2, 3, 4]", "[&a [1], *a]", "{a: {b: {c: 1}}, d: 1}"])
def test_values_are_counted_with_aliases_written_out(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(yaml_text, "MAX_PARTS", 5)
    assert read_yaml(text)
    monkeypatch.setattr(yaml_text, "MAX_PARTS", 4)
    with pytest.raises(YamlError, match="its aliases stand for 5 values, and it may have 4;"):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1", "^line 1, column 6: while parsing a flow sequence, expected ',' or '.'"),
        ("a: 1\n- b", "^line 2, column 1: "),
        ("a: 2027-02-30", "ValueError: day is out of range for month"),
        ("a: !!bool maybe", "KeyError"),
        ("[" * (MAX_DEPTH + 1), "over 64 lists and mappings in each other"),
        ("[" * 50_000, "over 64 lists and mappings in each other"),
        ("- " * 500_000, "over 64 lists and mappings in each other"),
        (chain("[*a{n}]"), "over 64 lists and mappings in each other"),
        (chain("{{<<: *a{n}, k{n}: 1}}"), "what they merge have over 50,000 keys"),
        (chain("{{<<: [*a{n}, *a{n}]}}", 40), "what they merge have over 50,000 keys"),
        ("&a {b: 1, <<: *a}", "a merge .<<. takes mappings, and none that it is part of"),
        ("{<<: 1}", "a merge .<<. takes mappings"),
        (b"\xff\xfe\xff", "unacceptable character"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("- x\n" * (MAX_MARKS + 1), "up to 50,001 values, and at most 50,000 are read"),
        ("a: " + "1:" * MAX_MARKS, "up to 50,001 values"),
        ("a: 0x" + "f" * 5000, "a whole number has 20,000 bits, and may have 1,024"),
        ("{? 0x" + "f" * 257 + " : 1}", "a whole number has 1,028 bits"),
        (BOMB, "write out what is meant"),
        ("&a [*a]", "an alias refers to a value that contains it"),
        ("&a {b: {c: *a}}", "an alias refers to a value that contains it"),
    ],
)
def test_what_is_wrong_is_one_error(text: str | bytes, told: str) -> None:
    with pytest.raises(YamlError, match=told):
        read_yaml(text)


@given(st.text(alphabet="ab:- \n[]{}&*!<'\"#|0129.eE~%", max_size=60))
def test_no_text_gives_another_error(text: str) -> None:
    words = ""
    try:
        read_yaml(text)
    except YamlError as error:
        words = str(error)
    assert "\n" not in words
