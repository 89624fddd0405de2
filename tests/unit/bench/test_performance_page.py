"""A benchmark replaces its own block of the page, and nothing else."""

import pytest

from bench.figures.performance_page import with_block

BEGIN, END = "<!-- mine:begin -->", "<!-- mine:end -->"
OTHER = "<!-- other:begin -->\nkept\n<!-- other:end -->\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", f"{BEGIN}\nnew\n{END}\n"),
        ("# Title\n", f"# Title\n\n{BEGIN}\nnew\n{END}\n"),
        (f"# T\n{BEGIN}\nold\nold\n{END}\nafter\n", f"# T\n{BEGIN}\nnew\n{END}\nafter\n"),
        (f"{OTHER}{BEGIN}\nold\n{END}\n{OTHER}", f"{OTHER}{BEGIN}\nnew\n{END}\n{OTHER}"),
    ],
)
def test_the_block_is_replaced_or_added_at_the_end(text: str, expected: str) -> None:
    once = with_block(text, "mine", "new")
    assert once == expected
    assert with_block(once, "mine", "new") == expected
