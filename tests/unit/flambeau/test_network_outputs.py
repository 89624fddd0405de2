"""Tests of the names of a network's outputs."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from flambeau.publishing.network_outputs import OutputError, OutputsInOrder, named_outputs

ONE, TWO = torch.ones(2), torch.zeros(2)


class _Pair(NamedTuple):
    boxes: Any
    scores: Any


@dataclass
class _Found:
    logits: Any
    hidden: Any = None
    cache: Any = None


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (ONE, ["output"]),
        ((ONE,), ["output_0"]),
        ([ONE, TWO], ["output_0", "output_1"]),
        (_Pair(ONE, TWO), ["boxes", "scores"]),
        ({"b": ONE, "a": TWO}, ["b", "a"]),
        (OrderedDict(b=ONE, a=None), ["b"]),
        (_Found(ONE), ["logits"]),
        (_Found(ONE, (TWO, ONE)), ["logits", "hidden.0", "hidden.1"]),
        ({"x": {"y": _Pair(ONE, TWO)}}, ["x.y.boxes", "x.y.scores"]),
        ((ONE, {"a": TWO}), ["output_0", "output_1.a"]),
    ],
)
def test_outputs_are_named_by_their_structure(found: object, names: list[str]) -> None:
    assert list(named_outputs(found)) == names


@pytest.mark.parametrize(
    ("found", "names", "order"),
    [
        (ONE, ["y"], [ONE]),
        ((ONE, TWO), ["y", "z"], [ONE, TWO]),
        (_Pair(ONE, TWO), ["y", "z"], [ONE, TWO]),
        (_Pair(ONE, TWO), ["scores", "boxes"], [TWO, ONE]),
        (_Pair(ONE, TWO), ["scores"], [TWO]),
        ({"b": ONE, "a": TWO}, ["a", "b"], [TWO, ONE]),
        (_Found(ONE, cache=object()), ["logits"], [ONE]),
        (_Found(ONE, (TWO, ONE)), ["hidden.1", "logits"], [ONE, ONE]),
        ({"a.b": TWO}, ["a.b"], [TWO]),
    ],
)
def test_names_rename_a_tuple_and_select_from_a_dictionary(
    found: object, names: list[str], order: list[Tensor]
) -> None:
    outputs = named_outputs(found, names)
    assert list(outputs) == names
    assert all(one is other for one, other in zip(outputs.values(), order, strict=True))


def _nested(depth: int) -> object:
    found: object = ONE
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("found", "names", "message"),
    [
        (None, None, "returns None; return a tensor"),
        ("text", None, "returns a str; return a tensor"),
        ({}, None, "returns no tensor"),
        ((ONE, None), None, "None as output 'output_1'"),
        ({"a": 1.5}, None, "a float as output 'a'"),
        ({3: ONE}, None, "the key '3' .int"),
        ({"": ONE}, None, "the key '' .str"),
        ({"a" * 300: ONE}, None, "300 characters"),
        ({"a.b": ONE, "a": {"b": TWO}}, None, "two outputs of the network have the name 'a.b'"),
        ([ONE] * 300, None, "more than 256 tensors"),
        (_nested(20), None, "more than 8 structures"),
        ((ONE, TWO), ["y"], "returns 2 outputs, and 1 names are given"),
        ((ONE, TWO), ["y", "y"], "occurs twice"),
        ({"logits": ONE}, ["logit"], "'logit' .did you mean 'logits'"),
        (_Pair(ONE, TWO), ["box"], "returns 2 outputs, and 1 names are given"),
        (_Found, None, "returns a type"),
    ],
)
def test_other_results_are_refused_in_words(
    found: object, names: list[str] | None, message: str
) -> None:
    with pytest.raises(OutputError, match=message):
        named_outputs(found, names)


def test_a_structure_that_contains_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["a"] = loop
    with pytest.raises(OutputError, match="more than 8 structures"):
        named_outputs(loop)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> _Found:
        y = self.layer(x)
        return _Found(logits=y, hidden={"size": y.abs().sum(1)})


def test_a_network_with_named_outputs_exports_and_traces_in_order() -> None:
    network = OutputsInOrder(_Net().eval(), ["hidden.size", "logits"])
    x = torch.randn(4, 3)
    right = network(x)
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(network, (x,), dynamic_shapes=(({0: batch},),))
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        traced = torch.jit.trace(network, (x,))  # type: ignore[no-untyped-call]
    for found in (program.module()(x), traced(x)):
        assert len(found) == 2
        assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))
