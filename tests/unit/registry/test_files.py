"""Range headers of downloads: RFC 9110, section 14.2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry.files import wanted_part


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("", (0, 10)),
        ("bytes=0-", (0, 10)),
        ("bytes=3-", (3, 10)),
        ("bytes=3-5", (3, 6)),
        ("bytes=3-99", (3, 10)),
        ("bytes=-4", (6, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=10-", None),
        ("bytes=5-3", None),
        ("bytes=-0", None),
        ("bytes=0-1,3-4", (0, 10)),
        ("lines=1-2", (0, 10)),
        ("bytes=a-b", (0, 10)),
        ("bytes=" + "9" * 40 + "-", (0, 10)),
    ],
)
def test_ranges(header: str, part: tuple[int, int] | None) -> None:
    assert wanted_part(header, 10) == part


@given(text=st.text(max_size=60), size=st.integers(0, 2**50))
def test_a_part_lies_within_the_file(text: str, size: int) -> None:
    for header in (text, f"bytes={text}"):
        part = wanted_part(header, size)
        assert part is None or 0 <= part[0] <= part[1] <= size
