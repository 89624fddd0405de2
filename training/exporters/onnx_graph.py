"""Exports a checkpoint to ONNX by the dynamo exporter, with a variable batch size.

Axes of the signature's padding vary from 1 to its last bucket, those of its `dynamic` between their
smallest and largest size.
"""

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from training.network.preprocessing import change_network, is_step
from training.process.quiet import quiet
from training.programs.dynamic_axes import axes_of_arguments
from training.programs.narrow_floats import NarrowFloats
from training.programs.own_operators import check_onnx
from training.programs.step_operations import ONNX_PREFIX

if TYPE_CHECKING:
    from onnx import ModelProto

CHATTY_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
"""Loggers of irrelevant messages, such as missing torchvision operators."""


def export_onnx(
    model: nn.Module,
    example: tuple[Tensor, ...],
    signature: Signature,
    path: Path,
    *,
    half: bool = False,
    with_scopes: bool = False,
) -> None:
    """Exports the model to one file, weights included, without information about this machine.

    Args:
        model: model in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows (0 and 1 are special).
        signature: signature with the names of the graph's inputs and outputs.
        path: output file.
        half: True if the network computes in FP16; inputs and outputs keep the types of the
            signature.
        with_scopes: True to keep each node's module, and the path of its code on this machine: for
            inspection, never to be published.

    Raises:
        ExportError: the model calls custom operators.
        Exception: any exception of the exporter for an unsupported model.
    """
    import onnx

    if half:
        model = change_network(model, lambda network: NarrowFloats(network, torch.float16)).eval()
    # The exporter's internals warn about deprecated parts of torch.
    with quiet(loggers=CHATTY_LOGGERS):
        try:
            torch.onnx.export(
                model,
                example,
                str(path),
                dynamo=True,
                verbose=False,
                external_data=False,
                dynamic_shapes=axes_of_arguments(model.forward, signature),
                input_names=[spec.name for spec in signature.inputs],
                output_names=[spec.name for spec in signature.outputs],
            )
        except Exception as error:  # the exporter may raise anything for an unsupported model
            check_onnx(error)
            raise
    if with_scopes:
        return
    document = onnx.load(path)
    _mark_steps(document)
    strip_metadata(document)
    onnx.save(document, path)


def _mark_steps(document: "ModelProto") -> None:
    """Marks the names of preprocessing nodes, so that a quantizer can exclude them."""
    for node in document.graph.node:
        found = {prop.key: prop.value for prop in node.metadata_props}
        # A Python list literal, outermost module first.
        modules = ast.literal_eval(found.get("pkg.torch.onnx.name_scopes", "[]"))
        if any(is_step(path) for path in modules):
            node.name = ONNX_PREFIX + node.name


def strip_metadata(document: "ModelProto") -> None:
    """Removes the exporter's stack traces, with paths of this machine, from a graph."""
    graph = document.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    parts: list[Any] = [graph, *graph.node, *values, *graph.initializer]
    for part in parts:
        del part.metadata_props[:]
