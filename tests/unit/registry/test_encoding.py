"""Documents of the registry in JSON: the same values, in slices that are short."""

import itertools
import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry import encoding
from services.registry.encoding import encoded

SLICE_S = 0.002
LONG = {
    "version": 1,
    "description": "\x01" * 4096,
    "tags": {f"tag {number}": "\x01" * 100 for number in range(60)},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(document=st.dictionaries(st.text(), VALUES))
def test_any_document_is_the_same_in_json(document: dict[str, Any]) -> None:
    assert json.loads(encoded(document)) == document


def test_a_part_that_is_json_already_is_kept_to_the_byte() -> None:
    digits = b"9" * 4300
    found = encoded({"report": orjson.Fragment(digits), "moves": [orjson.Fragment(b"[1]")]})
    assert found == b'{"report":%b,"moves":[[1]]}' % digits


def test_a_large_page_lends_the_interpreter_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred versions whose annotations are control characters have 6 MB.

    Joining the parts at the end is not measured: `bytes.join` releases the lock for so many.
    """
    ends: list[float] = []
    monkeypatch.setattr(encoding, "lend_lock", lambda: ends.append(time.thread_time()))

    def longest_slice_s() -> float:
        ends[:] = [time.thread_time()]
        assert len(encoded({"name": "m", "versions": [LONG] * 100})) > 6_000_000
        return max(after - before for before, after in itertools.pairwise(ends))

    assert min(longest_slice_s() for _ in range(5)) < SLICE_S
    assert len(ends) > 10
