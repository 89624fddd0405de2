"""The page of TorchServe's API has the differences that `make conformance-torchserve` expects."""

from pathlib import Path

from bench.figures.performance_page import with_block
from tests.conformance_torchserve.differences import REASONS, known_names, table

PAGE = Path(__file__).parents[2] / "docs/reference/torchserve.md"


def test_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert text == with_block(text, "differences", table())


def test_reasons_are_those_of_calls_that_are_made() -> None:
    named = [name for names in REASONS.values() for name in names]
    assert sorted(set(named)) == sorted(named), "a call has one reason"
    assert set(named) <= known_names()
