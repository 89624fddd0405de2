"""Makes traced convolutions compute in FP32, as the artifact was verified.

A trace keeps torch's flag for TF32 of the process that traced it, and that is True by default. A
scripted convolution reads the flag of the process that runs it.
"""

from typing import Any

import torch

CONVOLUTION = "aten::_convolution"


def forbid_tf32(module: torch.jit.ScriptModule) -> None:
    """Sets the flag of every traced convolution to False, before the module's first run.

    Args:
        module: changed in place; the methods and functions that it calls become part of its graph.
    """
    graph: Any = module.graph
    torch._C._jit_pass_inline(graph)
    nodes = [n for n in graph.findAllNodes(CONVOLUTION, True) if "allow_tf32" in n.schema()]
    if nodes:
        forbidden = graph.insertConstant(False)
        forbidden.node().moveBefore(next(iter(graph.nodes())))
        for node in nodes:
            node.replaceInput(node.inputsSize() - 1, forbidden)
