"""The rules by which two answers are equal."""

import gzip
import json
import math
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.replay.comparison.compare import Comparer
from flambeau.replay.comparison.findings import MAX_DIFFERENCES, Findings, Rules
from flambeau.replay.errors import RulesError
from flambeau.replay.records import Answer

RULES = Rules(relative=1e-3, absolute=1e-6)
UUIDS = "0e6dd0a8-5d3c-4e0c-8b7e-1f1f2f3f4f5f", "ffffffff-5d3c-4e0c-8b7e-1f1f2f3f4f5f"


def answer(body: bytes, status: int = 200, **headers: str) -> Answer:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(status, named, body, 0.01)


def compared(old: Any, new: Any, rules: Rules = RULES) -> Findings:
    """Compares bytes as they are, texts in UTF-8, and all else as JSON."""

    def octets(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()

    return Comparer(rules).compare(answer(octets(old)), answer(octets(new)))


def places(old: Any, new: Any, rules: Rules = RULES) -> list[str]:
    return [difference.place for difference in compared(old, new, rules).differences]


@pytest.mark.parametrize(
    ("old", "new", "by_rules"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, set()),
        ([1, 2.0], [1.0, 2], set()),
        ([1.0], [1.0009], {"tolerance"}),
        ([0.0], [1e-6], {"tolerance"}),
        ([math.nan, math.inf], [math.nan, math.inf], set()),
        ({"id": UUIDS[0]}, {"id": UUIDS[1]}, {"ids and times"}),
        (["0.9000:3:cat"], ["0.9001:3:cat"], {"tolerance"}),
        ("score 0.5000\n", "score 0.5001\n", {"tolerance"}),
        ("data: 0.5\n\n", "data: 5e-1\n\n", set()),
        ("at 2026-11-27T15:00:00.5Z", "at 2025-01-01 01:02:03", {"ids and times"}),
        ("Fri, 27 Nov 2026 15:00:00 GMT", "Sat, 28 Nov 2026 15:00:01 GMT", {"ids and times"}),
        (b"\x00\x01", b"\x00\x01", set()),
    ],
)
def test_what_is_equal(old: Any, new: Any, by_rules: set[str]) -> None:
    found = compared(old, new)
    assert (found.count, found.by_rules) == (0, by_rules)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([1.0], [1.0011], ["[0]"]),
        ([1000000], [1000001], ["[0]"]),  # integers have no tolerance
        ([2**53], [2**53 + 1], ["[0]"]),
        ([10**400], [1.5], ["[0]"]),
        ([1], [True], ["[0]"]),
        ([0], [None], ["[0]"]),
        ([math.inf], [1.0], ["[0]"]),
        ([1.0], [math.inf], ["[0]"]),
        ([math.nan], [1.0], ["[0]"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2, 3]}}, ["a.b"]),
        ({"a": 1}, {"b": 1}, ["a", "b"]),
        ({"a": "x"}, {"a": 7}, ["a"]),
        (7, "7 cats", ["body"]),
        ("class 3", "class 4", ["body"]),
        ("a 0.5 b", "a 0.5 c", ["body"]),
        ("1 2", "1 2 3", ["body"]),
        (b"\xff\x01", b"\xff\x02", ["byte 1"]),
        (b"\xff", b"\xff\x02", ["byte 1"]),
        (b"a\0", b"a\0b", ["byte 2"]),
        (UUIDS[0], UUIDS[0][:-1], ["body"]),
        (b"", b"{}", ["body"]),
    ],
)
def test_what_differs(old: Any, new: Any, expected: list[str]) -> None:
    assert places(old, new) == expected


def test_a_difference_shows_both_values() -> None:
    (difference,) = compared({"a": [0.5]}, {"a": [0.25]}).differences
    assert difference.model_dump() == {"kind": "body", "place": "a[0]", "old": "0.5", "new": "0.25"}
    (difference,) = compared("x" * 1000 + "old", "x" * 1000 + "new").differences
    assert difference.place == "body, from character 980"
    assert "old" in difference.old
    assert "new" in difference.new


def test_the_first_differences_are_kept_and_all_are_counted() -> None:
    found = compared([0.0] * 50, [1.5] * 49 + [2.5])
    assert (len(found.differences), found.count, found.largest) == (MAX_DIFFERENCES, 50, 2.5)
    assert found.differences[0].place == "[0]"


def test_exact_texts_compare_ids_times_and_addresses() -> None:
    rules = Rules(normalises=False)
    assert places(UUIDS[0], UUIDS[1], rules) == ["body"]
    assert places({"time": "2026-11-27T15:00:00Z"}, {"time": "2026-11-27T15:00:01Z"}, rules)


def test_the_address_of_each_server_is_its_own() -> None:
    rules = Rules(origins=("http://old:8080", "http://new:8000"))
    old, new = {"url": "http://old:8080/x"}, {"url": "http://new:8000/x"}
    assert compared(old, new, rules).by_rules == {"ids and times"}
    assert compared(old, new, rules).count == 0
    assert places(new, old, rules) == ["url"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("id", ["outputs[0].id", "outputs[1].id", "outputs[1].pid"]),
        ("outputs[*].id", ["id", "outputs[1].pid"]),
        ("outputs[0].*", ["id", "outputs[1].id", "outputs[1].pid"]),
        ("outputs[1]", ["id", "outputs[0].id"]),
        ("**.id", ["outputs[1].pid"]),
        ("outputs**.pid", ["id", "outputs[0].id", "outputs[1].id"]),
        ("outputs", ["id"]),
    ],
)
def test_ignored_paths_are_left_out(pattern: str, left: list[str]) -> None:
    old = {"id": "a", "outputs": [{"id": "a"}, {"id": "a", "pid": 1}]}
    new = {"id": "b", "outputs": [{"id": "b"}, {"id": "b", "pid": 2}]}
    assert places(old, new, Rules(ignored=(pattern,))) == left


@pytest.mark.parametrize("pattern", ["", "$.id", "a[x]", "a[", "x" * 1001])
def test_what_is_no_path_is_refused(pattern: str) -> None:
    with pytest.raises(RulesError, match="is no path"):
        Comparer(Rules(ignored=(pattern,)))


def test_status_and_headers() -> None:
    old = answer(b"x", 200, content_type='Text/Plain; charset="UTF-8"', x_model="a", date="1")
    same = answer(b"x", 200, content_type="text/plain;charset=utf-8", x_model="a", date="2")
    other = answer(b"x", 404, content_type="text/plain", x_model="b", date="3")
    assert Comparer(RULES).compare(old, same).count == 0
    found = Comparer(RULES).compare(old, other)
    assert [(d.kind, d.place) for d in found.differences] == [
        ("status", "status"), ("header", "content-type"),
    ]  # fmt: skip
    everything = Comparer(Rules(headers=("content-type", "*"))).compare(same, other)
    assert [d.place for d in everything.differences] == ["status", "content-type", "x-model"]


def test_compressed_bodies_are_compared_plain() -> None:
    body = json.dumps({"a": [1.0]}).encode()
    zipped = answer(gzip.compress(body), content_encoding="gzip")
    deflated = answer(zlib.compress(body), content_encoding="deflate")
    found = [Comparer(RULES).compare(zipped, other).count for other in (deflated, answer(body))]
    assert found == [0, 0]
    broken = answer(gzip.compress(body)[:-9], content_encoding="gzip")
    assert Comparer(RULES).compare(zipped, broken).count == 1


def test_images_are_bytes_even_if_they_look_like_text() -> None:
    old = answer(b"1.0000", content_type="image/x-numbers")
    assert Comparer(RULES).compare(old, answer(b"1.0001", content_type="image/x-numbers")).count
    assert not Comparer(RULES).compare(answer(b"1.0000"), answer(b"1.0001")).count


def binary(values: list[float], *, datatype: str = "FP32", size: float | None = None) -> Answer:
    form = {"FP32": "f", "FP16": "e", "INT32": "i"}[datatype]
    raw = struct.pack(f"<{len(values)}{form}", *values)
    parameters = {"binary_data_size": len(raw) if size is None else size}
    document = {
        "model_name": "m",
        "outputs": [{"name": "y", "datatype": datatype, "parameters": parameters}],
    }
    text = json.dumps(document).encode()
    return answer(text + raw, inference_header_content_length=str(len(text)))


@pytest.mark.parametrize("datatype", ["FP32", "FP16"])
def test_raw_outputs_have_the_tolerance(datatype: str) -> None:
    old = binary([1.0, 2.0, math.inf], datatype=datatype)
    found = Comparer(RULES).compare(old, binary([1.0, 2.0010, math.inf], datatype=datatype))
    assert (found.count, found.by_rules) == (0, {"tolerance"})
    found = Comparer(RULES).compare(old, binary([1.5, 2.5, math.inf], datatype=datatype))
    assert [d.place for d in found.differences] == ["output y[0]"]
    assert (found.count, found.largest) == (2, 0.5)


def test_raw_integers_are_equal_or_not() -> None:
    old, new = binary([1, 2000000], datatype="INT32"), binary([1, 2000001], datatype="INT32")
    assert [d.place for d in Comparer(RULES).compare(old, new).differences] == ["output y, byte 4"]


@pytest.mark.parametrize("size", [-4, 3, 5, 1000, 10**30, math.inf, math.nan])
def test_raw_outputs_that_contradict_themselves_are_bytes(size: float) -> None:
    old, new = binary([1.0], size=size), binary([1.0001], size=size)
    assert Comparer(RULES).compare(old, new).count >= 1
    assert Comparer(RULES).compare(old, binary([1.0], size=size)).count == 0


def test_names_and_texts_that_utf8_cannot_hold_are_told() -> None:
    old, new = r'{"\ud800": 1, "a": "\udfff"}', r'{"\ud800": 2, "a": "\ud800"}'
    assert places(old, new) == ["\\ud800", "a"]


def test_json_that_is_nested_too_deeply_to_read_is_text() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert compared(deep, deep + b" ").differences[0].place.startswith("body, from character")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_a_value_equals_itself_however_it_is_written(value: Any) -> None:
    spaced = json.dumps(value, indent=3).encode()
    found = compared(json.dumps(value).encode(), spaced)
    assert (found.count, found.by_rules, found.largest) == (0, set(), 0.0)


@given(JSON, JSON)
def test_any_two_values_are_compared_alike_in_both_directions(old: Any, new: Any) -> None:
    exact = Rules(relative=0, absolute=0, normalises=False)
    forth, back = compared(old, new, exact), compared(new, old, exact)
    assert (forth.count == 0) == (back.count == 0)


@given(st.binary(), st.binary())
def test_any_two_bodies_are_compared(old: bytes, new: bytes) -> None:
    assert (compared(old, new, Rules(relative=0, absolute=0)).count == 0) or old != new


@given(st.floats(-1e6, 1e6), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_tolerance_is_a_part_of_the_old_number(
    old: float, shift: float, relative: float, absolute: float
) -> None:
    new = old + shift
    found = compared([old], [new], Rules(relative=relative, absolute=absolute))
    assert (found.count == 0) == (abs(old - new) <= absolute + relative * abs(old))
