"""Tells if a TorchScript module may change its own tensors or attributes when it runs.

In: a module. Out: False if two threads may call it at once. Cautious: an operator in place counts
if its target was made from an attribute, even if that made a copy.
"""

from collections.abc import Iterator
from typing import Any

import torch

_SET, _GET = "prim::SetAttr", "prim::GetAttr"
_BLOCKS = ("prim::If", "prim::Loop")


def changes_itself(module: torch.jit.ScriptModule) -> bool:
    """Returns True if a run sets an attribute, or runs an operator in place on what comes of one.

    Args:
        module: in evaluation, so that branches of training do not count.
    """
    graph: Any = module.graph.copy()
    torch._C._jit_pass_inline(graph)
    no = graph.insertConstant(False)
    no.node().moveBefore(next(iter(graph.nodes())))
    for node in graph.findAllNodes(_GET, True):
        if node.s("name") == "training":
            node.output().replaceAllUsesWith(no)
    torch._C._jit_pass_constant_propagation(graph)
    given = {value.debugName() for value in graph.inputs()}
    for node in _nodes(graph):
        kind = node.kind()
        if kind == _SET or (kind.endswith("_") and not _is_given(node.inputsAt(0), given)):
            return True
    return False


def _is_given(value: Any, given: set[str]) -> bool:
    """Returns True if the first inputs of operators lead back to an input, or to a new tensor."""
    node = value.node()
    while node.inputsSize() and node.kind() not in (_GET, *_BLOCKS):
        value = node.inputsAt(0)
        node = value.node()
    if node.kind() == "prim::Param":  # of the graph, or else of a block inside
        return value.debugName() in given
    return node.kind() not in (_GET, *_BLOCKS)


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
