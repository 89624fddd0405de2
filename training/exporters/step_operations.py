"""Which operations of an exported model belong to the steps in front of its network.

Quantizers leave them as they are: raw inputs are not what their ranges are made for.
"""

import torch

from training.network.preprocessing import is_step

ONNX_PREFIX = "preprocess/"
"""How the names of their nodes start in an ONNX graph."""


def is_of_step(node: torch.fx.Node) -> bool:
    """Whether a node of an exported program is one of them."""
    # From the outermost module to the innermost: (path, class) each.
    modules = node.meta.get("nn_module_stack", {}).values()
    return any(is_step(str(path)) for path, _ in modules)
