"""Sizes of dimensions that are computed from others."""

import pytest

from training.importing.sources.read_tensor import Dimension, ReadTensor
from training.importing.sources.varying_sizes import (
    changed_sizes,
    chosen_sizes,
    dependent_names,
)


def inputs(*dims: tuple[Dimension, ...], **ranges: tuple[int, int | None]) -> list[ReadTensor]:
    """Inputs a, b, ... of these dimensions; the ranges are of their second one."""
    return [
        ReadTensor(
            name=name,
            datatype="FP32",
            dims=one,
            ranges={1: ranges[name]} if name in ranges else {},
        )
        for name, one in zip("abcd", dims, strict=False)
    ]


@pytest.mark.parametrize(
    ("names", "before", "after"),
    [
        (("n", "n + 1"), (8, 9), (4, 5)),
        (("n", "3*n + 1"), (8, 25), (4, 13)),
        (("2*n", "n//4"), (48, 6), (24, 3)),
        (("n - 1", "(n*m)", "m"), (7, 24, 3), (3, 4, 1)),
        (("batch-size", "x"), (8, 9), (4, 4)),  # a name, and no difference
        (("m*n", "x"), (8, 9), (4, 4)),  # nothing tells m and n
        (("", ""), (8, 9), (4, 4)),
        (("9" * 200 + "*n", "((((n"), (8, 9), (4, 4)),
    ],
)
def test_computed_sizes_change_with_their_names(
    names: tuple[str, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    given = inputs(*[("rows", name) for name in names])
    sizes = {(one.name, 0): 5 for one in given}
    sizes |= {(one.name, 1): size for one, size in zip(given, before, strict=True)}

    found = changed_sizes(given, sizes, lambda size: size // 2)

    assert found == {(one.name, 1): size for one, size in zip(given, after, strict=True)}


def test_a_change_beyond_a_computed_limit_is_none() -> None:
    given = inputs(("rows", "n"), ("rows", "2*n"), b=(6, 20))
    sizes = {("a", 0): 2, ("a", 1): 8, ("b", 0): 2, ("b", 1): 16}

    assert changed_sizes(given, sizes, lambda size: size * 2) is None
    assert changed_sizes(given, sizes, lambda size: size + 1) == {("a", 1): 9, ("b", 1): 18}


def test_made_up_sizes_fit_each_other_and_the_limits() -> None:
    given = inputs(("rows", "n"), ("rows", "n + 1"), ("rows", "4*k"), b=(3, 6), c=(100, 200))

    found = chosen_sizes(given, 8)

    assert (found["a", 1], found["b", 1], found["c", 1]) == (2, 3, 100)
    assert found["a", 0] == 8


def test_names_of_computed_sizes_do_not_vary_by_themselves() -> None:
    given = inputs(("rows", "n"), ("rows", "n + 1"), ("rows", "m"), ("rows", "2*k"))

    assert dependent_names(given) == {"rows", "n", "n + 1", "2*k"}
