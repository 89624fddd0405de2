"""Identifies the operations of an exported model that belong to its preprocessing steps.

Quantizers skip them, because their ranges do not suit raw inputs.
"""

import torch

from training.network.preprocessing import is_step

ONNX_PREFIX = "preprocess/"
"""Prefix of the names of their nodes in an ONNX graph."""


def is_of_step(node: torch.fx.Node) -> bool:
    """Checks that a node of an exported program belongs to a preprocessing step."""
    # From the outermost module to the innermost: (path, class) each.
    modules = node.meta.get("nn_module_stack", {}).values()
    return any(is_step(str(path)) for path, _ in modules)
