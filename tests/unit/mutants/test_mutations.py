"""Mutations of `make mutants` change one behaviour at a time, and nothing else."""

import ast
from pathlib import Path

import pytest

from tests.mutants.mutations import Mutation, mutations

ROOT = Path(__file__).parents[3]


def changed(body: str) -> set[str]:
    """The bodies that a function's body becomes."""
    source = f"def f(a, b):\n    {body}\n"
    texts = (found.applied(source) for found in mutations(source))
    return {text.split("\n", 1)[1].strip() for text in texts}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"return a <= b", "return None"}),
        ("return (a) is not (b)", {"return (a) is (b)", "return None"}),
        ("return a in b and b", {"return a not in b and b", "return a in b or b", "return None"}),
        ("return a + 1", {"return a - 1", "return a + (1 + 1)", "return None"}),
        ("if a: return True", {"if (not (a)): return True", "if a: return False"}),
        ("if not a: b()", {"if (a): b()", "if not a: pass"}),
        ("a += 1", {"pass", "a += (1 + 1)"}),
        ("a.close()", {"pass"}),
        ("await a.close()", {"pass"}),
        ("return 'ä' if a else b", {"return 'ä' if (not (a)) else b", "return None"}),
        ("return ((a + b) * b)", {"return ((a + b) / b)", "return ((a - b) * b)", "return (None)"}),
    ],
)
def test_what_becomes_of_a_statement(body: str, expected: set[str]) -> None:
    assert changed(body) == expected


@pytest.mark.parametrize(
    "body",
    ['"""Words."""', "logger.info('%d', a + b)", "raise ValueError(a + b)", "assert a < b", "pass"],
)
def test_what_nobody_promises_stays(body: str) -> None:
    assert changed(body) == set()


def test_tables_and_types_stay() -> None:
    assert mutations("LIMIT = 3 * 2**20\n\n\ndef f(a: int = 3) -> None:\n    b: int\n") == []


def test_a_function_within_another_is_changed_once() -> None:
    source = "def f(a):\n    def g(b):\n        return b < 1\n    return g(a)\n"
    found = mutations(source)
    assert len(found) == len({(one.start, one.text) for one in found})
    assert Mutation(3, 40, 43, " <= ", "comparison becomes <=") in found


def test_every_change_of_the_sources_is_python() -> None:
    name = ROOT / "services" / "inference" / "scheduling" / "batcher.py"
    source = name.read_text()
    found = mutations(source)
    assert len(found) > 50
    for one in found:
        assert one.applied(source) != source
        ast.parse(one.applied(source))
