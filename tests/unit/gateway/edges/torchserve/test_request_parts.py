"""Bodies become parts, in slices; bodies that are no forms are refused."""

import random
import time

import pytest

from model_store.archives.handler_calls import MAX_HEAD_BYTES, Part
from services.errors import InvalidRequestError
from services.gateway.edges.torchserve.request_parts import (
    MAX_BOUNDARY_CHARACTERS,
    MAX_PART_HEAD_BYTES,
    MAX_PARTS,
    read_parts,
    type_of,
)
from services.gateway.sliced_work import at_once

FORM = "application/x-www-form-urlencoded"
MULTIPART = 'multipart/form-data; boundary="b"'
MAX_SLICE_S = 0.05
"""CPU time of any slice."""


def parts_of(body: bytes, content_type: str) -> list[tuple[str, str, bytes]]:
    """Returns the parts of a body."""
    found = at_once(read_parts(body, content_type))
    return [(part.name, part.content_type, bytes(part.data)) for part in found]


def part(name: str, data: bytes, *further: str, file: bool = False) -> bytes:
    """Encodes a part of a multipart body."""
    named = f'Content-Disposition: form-data; name="{name}"' + ('; filename="f"' if file else "")
    return "\r\n".join(["--b", named, *further, "", ""]).encode() + data + b"\r\n"


def test_a_raw_body_is_one_part_with_its_type() -> None:
    assert parts_of(b"\0\1", "") == [("body", "", b"\0\1")]
    json = "application/json"
    assert parts_of(b"{}", f"{json}; charset=utf-8") == [("body", json, b"{}")]
    unbounded = "multipart/form-data"
    assert parts_of(b"x", unbounded) == [("body", unbounded, b"x")]
    assert type_of(" text/plain ;x=1") == "text/plain"


def test_fields_of_a_form_are_decoded() -> None:
    body = b"a=1&b=x+y%20z&c&d=%e4%bd%a0&&a=2"
    assert parts_of(body, FORM + ";charset=utf-8") == [
        ("a", "", b"1"),
        ("b", "", b"x y z"),
        ("c", "", b""),
        ("d", "", "你".encode()),
        ("a", "", b"2"),
    ]
    assert parts_of(b"", FORM) == []
    assert parts_of(b"a=%zz%", FORM) == [("a", "", b"%zz%")]


def test_escapes_across_slices_are_decoded() -> None:
    for count in (1364, 1365, 1366, 4096, 10_000):
        for begin in (b"", b"x", b"xx"):
            value = begin + b"%41" * count
            assert parts_of(b"a=" + value, FORM) == [("a", "", begin + b"A" * count)]


def test_parts_of_a_multipart_body() -> None:
    body = b"".join(
        [
            part("data", b"\r\n--c\r\n", "Content-Type: image/png; x=1", file=True),
            part("text", b"hello", "Content-Type: text/plain"),
            part("none", b"", file=True),
            b"--b--\r\nbehind",
        ]
    )
    expected = [
        ("data", "image/png", b"\r\n--c\r\n"),
        ("text", "", b"hello"),
        ("none", "application/octet-stream", b""),
    ]
    assert parts_of(body, MULTIPART) == expected
    assert parts_of(b"before\r\n" + body, "Multipart/Form-Data; boundary=b") == expected
    assert parts_of(body.replace(b"--b\r\n", b"--b \t\r\n"), MULTIPART) == expected


def read_in_slices(body: bytes, content_type: str) -> tuple[list[Part], int, float]:
    """Returns the parts of a body, the number of slices, and the CPU time of the longest."""
    slices, count, longest = read_parts(body, content_type), 0, 0.0
    while True:
        began = time.thread_time()
        try:
            next(slices)
        except StopIteration as end:
            return end.value, count, longest
        finally:
            longest = max(longest, time.thread_time() - began)
        count += 1


def test_a_large_multipart_body_is_read_in_slices() -> None:
    data = random.Random(1).randbytes(8 * 2**20)
    found, count, longest = read_in_slices(part("data", data) + b"--b--", MULTIPART)
    assert [bytes(one.data) for one in found] == [data]
    assert count >= 8
    assert longest < MAX_SLICE_S


def test_many_parts_are_read_in_slices() -> None:
    body = part("a", b"") * MAX_PARTS + b"--b--"
    found, count, _ = read_in_slices(body, MULTIPART)
    assert len(found) == MAX_PARTS
    assert count >= 9


@pytest.mark.parametrize(
    ("piece", "decoded"), [(b"+", b" "), (b"%", b"%"), (b"%41", b"A"), (b"%41x", b"Ax")]
)
def test_a_large_form_is_read_in_slices(piece: bytes, decoded: bytes) -> None:
    times = 2**20 // len(piece)
    (found,), count, longest = read_in_slices(b"a=" + piece * times, FORM)
    assert found.data == decoded * times
    assert count >= 255
    assert longest < MAX_SLICE_S


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"x", f"multipart/form-data; boundary={'x' * (MAX_BOUNDARY_CHARACTERS + 1)}", "boundary"),
        (b"%" * 3 * MAX_HEAD_BYTES + b"x", FORM, "a name of 786,433 bytes"),
        (b"x", MULTIPART, "does not have its boundary 'b'"),
        (b"", MULTIPART, "does not have its boundary"),
        (b"--b", MULTIPART, "does not end its line"),
        (b"--bc\r\n\r\nx\r\n--b--", MULTIPART, "does not end its line"),
        (b"--b\r\n", MULTIPART, "no end"),
        (part("a", b"x"), MULTIPART, "part 1 of the multipart body has no end"),
        (b"--b\r\n\r\nx\r\n--b--", MULTIPART, "has no name"),
        (b'--b\r\nContent-Disposition: form-data; name=""\r\n\r\nx\r\n--b--', MULTIPART, "no name"),
        (b"--b\r\nContent-Disposition: form-data\r\nx\r\n--b--", MULTIPART, "has no head"),
        (
            b"--b\r\nX: " + b"y" * MAX_PART_HEAD_BYTES + b"\r\n\r\nx\r\n--b--",
            MULTIPART,
            "has no head",
        ),
        (part("a", b"") * (MAX_PARTS + 1) + b"--b--", MULTIPART, "over 1,000 parts"),
        (b"a&" * (MAX_PARTS + 1), FORM, "over 1,000 fields"),
    ],
)
def test_bodies_that_are_none_are_refused(body: bytes, content_type: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parts_of(body, content_type)


def test_random_bodies_give_parts_or_an_error() -> None:
    chance = random.Random(2)
    pieces = [b"--b", b"\r\n", b"--", b'Content-Disposition: form-data; name="a"', b"x", b":", b" "]
    for _ in range(3000):
        body = b"".join(chance.choices(pieces, k=chance.randrange(20)))
        try:
            found = parts_of(body, MULTIPART)
        except InvalidRequestError:
            continue
        assert all(name == "a" for name, _, _ in found)
