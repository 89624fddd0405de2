"""Rejects custom operators, which no artifact can contain.

In: an exporter's result, or its error. Out: nothing, or an error that names the operators.

`torch.library.custom_op` makes an operator that tracers do not inline. The artifact then refers to
it, and a server, which does not import the user's code, has no such operator. The process that
makes the artifact has it, and so may the one that verifies it: neither would notice.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from training.errors import ExportError
from training.process.root_cause import root_cause

OF_TORCH = frozenset({"aten", "prim", "prims", "quantized", "quantized_decomposed", "torchao"})
"""Namespaces of the operators that every server has."""
NO_ONNX = re.compile(r"No ONNX function found for <OpOverload\(op='([^'.]+)\.([^'.]+)")


def check_program(program: torch.export.ExportedProgram) -> None:
    """Checks the operators of an exported program, and of its loops.

    Raises:
        ExportError: an operator is not torch's.
    """
    _refuse(
        node.target._schema.name
        for graph in program.graph_module.modules()
        if isinstance(graph, fx.GraphModule)
        for node in graph.graph.nodes
        if isinstance(node.target, OpOverload)
    )


def check_script(script: nn.Module) -> None:
    """Checks the operators of a traced or compiled module.

    Raises:
        ExportError: an operator is not torch's.
    """
    _refuse(_kinds(script.inlined_graph))


def check_onnx(error: Exception) -> None:
    """Checks why the ONNX exporter failed.

    Raises:
        ExportError: the cause is an operator that is not torch's.
    """
    found = NO_ONNX.search(root_cause(error))
    if found is not None:
        _refuse([f"{found[1]}::{found[2]}"])


def _kinds(block: Any) -> Iterator[str]:
    """Yields the operators of a TorchScript graph, and of its branches and loops."""
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)


def _refuse(operators: Iterable[str]) -> None:
    """Raises an error if there are custom operators among `namespace::name` names."""
    own = sorted({name for name in operators if name.partition("::")[0] not in OF_TORCH})
    if own:
        raise ExportError(
            f"the model calls {', '.join(own)}, and no server has such operators; give it a method "
            "`export_twin(self)` that returns the same network in torch's own"
        )
