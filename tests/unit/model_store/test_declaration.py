"""Declarations of uploads: what comes from another machine has limits and plain names."""

import contextlib
import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import UploadRefusedError
from model_store.uploads.declaration import MAX_FILES, parse_declaration

MANIFEST = {"file": "manifest.json", "size_bytes": 2, "sha256": "0" * 64}


def declaration(*files: Any, **changes: Any) -> bytes:
    found = {"model": "digits", "version": 1, "files": [MANIFEST, *files], **changes}
    return json.dumps(found).encode()


def file(name: str, **changes: Any) -> dict[str, Any]:
    return {"file": name, "size_bytes": 3, "sha256": "1" * 64, **changes}


def test_the_id_is_that_of_contents_and_owner() -> None:
    one, other = parse_declaration(declaration()), parse_declaration(declaration(file("a")))
    assert one.upload_id("key:a") == other.upload_id("key:a")
    assert one.upload_id("key:a") != one.upload_id("key:b")
    assert one.upload_id("key:a").isalnum()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (declaration(file("../up")), "not allowed"),
        (declaration(file("/etc/passwd")), "not allowed"),
        (declaration(file("a/b")), "not allowed"),
        (declaration(file("..")), "not allowed"),
        (declaration(file("a\0b")), "not allowed"),
        (declaration(file("x" * 129)), "not allowed"),
        (declaration(file(".hidden")), "not allowed"),
        (declaration(file("claim.json")), "the store writes this file itself"),
        (declaration(file("a"), file("a")), "declared twice"),
        (declaration(file("a", size_bytes=-1)), "size_bytes"),
        (declaration(file("a", size_bytes=2**41)), "size_bytes"),
        (declaration(file("a", size_bytes=2**40), file("b", size_bytes=1)), "the files have"),
        (declaration(file("a", sha256="x")), "sha256"),
        (declaration(file("a", mode=1)), "mode"),
        (declaration(model="../digits"), "not allowed"),
        (declaration(version=0), "version"),
        (declaration(version=True), "'version' is True: write a whole number"),
        (declaration(version="1"), "'version' is '1': write a whole number"),
        (declaration(file("a", size_bytes=1.0)), "'size_bytes' is 1.0: write a whole number"),
        (declaration(file("a", size_bytes="1")), "'size_bytes' is '1': write a whole number"),
        (declaration(version=10**9), "version"),
        (declaration(files=[file("a")]), "has no manifest.json"),
        (declaration(files=[{**MANIFEST, "size_bytes": 2**21}]), "over 1,048,576"),
        (declaration(file("model.sig", size_bytes=2**30)), "model.sig has"),
        (declaration(*(file(f"f{n}") for n in range(MAX_FILES))), "at most 1,024"),
        (b"{", "not JSON"),
        (b"[" * 2**20 + b"]", "bytes"),
        (b"[" * 4000, "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (declaration("a"), "in 'files.1', '.whole.' is 'a': write a mapping"),
        (declaration(files={"a": 1}), "write a list"),
        (declaration(file("a", **{f"k{n}": n for n in range(20)})), "'files.1' of .* 23 keys"),
        (declaration(**{f"k{n}": n for n in range(4000)}), "4,003 keys, over 16"),
        (declaration(*[None] * 5000), "at most 5,000 are read"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_declarations_that_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(UploadRefusedError, match=words):
        parse_declaration(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(UploadRefusedError):
        parse_declaration(data)


COSTLY = {
    "wrong values": declaration(*[file("../up", size_bytes=-1, sha256="x")] * 1000),
    "no files": declaration(*[None] * 4900),
    "values": declaration(*[{}] * 11_000),
    "keys": declaration(**{f"k{n}": n for n in range(4900)}),
    "keys of a file": declaration({f"k{n}": n for n in range(4900)}),
    "escapes": declaration(file("\x01" * 80_000)),
    "digits": b"[" + b",".join([b"9" * 300] * 1700) + b"]",
    "long digits": b"[" + b",".join([b"9" * 4300] * 120) + b"]",
    "none": declaration(*(file(f"f{n:0>120}") for n in range(MAX_FILES - 1))),
}
SLICE_S = 0.003
LOOP_S = 0.00085
"""Processor time of 50,000 turns of an empty loop, where the limit holds."""


def longest_slice_s(data: bytes) -> float:
    """Returns the most processor time between two releases of the interpreter lock."""
    ends = [time.thread_time()]
    with contextlib.suppress(UploadRefusedError):
        parse_declaration(data, lambda: ends.append(time.thread_time()))
    ends.append(time.thread_time())
    return max(after - before for before, after in itertools.pairwise(ends))


def slowness() -> float:
    """Returns how much slower this machine is now than the one of the limit; at least 1."""
    began = time.thread_time()
    for _ in range(50_000):
        pass
    return max((time.thread_time() - began) / LOOP_S, 1.0)


@pytest.mark.parametrize("fault", COSTLY)
def test_no_fault_and_no_number_of_files_occupies_the_interpreter(fault: str) -> None:
    assert min(longest_slice_s(COSTLY[fault]) / slowness() for _ in range(20)) < SLICE_S
