"""Checkpoint to ONNX, by the dynamo exporter, with a batch dimension of any size.

Axes that the signature's padding names vary from 1 to its last bucket, those of its `dynamic`
between their smallest and largest size.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from model_store.signature import Signature
from training.exporters.dynamic_axes import dynamic_axes
from training.exporters.narrow_floats import NarrowFloats
from training.quiet import quiet

if TYPE_CHECKING:
    from onnx import ModelProto

CHATTY_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
"""They talk about missing torchvision operators and the like, which is not the user's business."""


def export_onnx(
    model: nn.Module,
    example: tuple[Tensor, ...],
    signature: Signature,
    path: Path,
    half: bool = False,
) -> None:
    """Exports the model to one file, weights included, which says nothing about this machine.

    Args:
        model: in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows (0 and 1 are special).
        signature: names the graph's inputs and outputs.
        path: the file to write.
        half: whether it computes in FP16; inputs and outputs stay as the signature has them.

    Raises:
        Exception: whatever the exporter raises for a model it cannot take.
    """
    import onnx

    axes: tuple[object, ...] = dynamic_axes(signature)
    if half:
        model, axes = NarrowFloats(model, torch.float16).eval(), (axes,)  # it takes *inputs
    # The exporter's own internals warn about deprecated parts of torch.
    with quiet(loggers=CHATTY_LOGGERS):
        torch.onnx.export(
            model,
            example,
            str(path),
            dynamo=True,
            verbose=False,
            external_data=False,
            dynamic_shapes=axes,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
        )
    document = onnx.load(path)
    strip_metadata(document)
    onnx.save(document, path)


def strip_metadata(document: "ModelProto") -> None:
    """Removes the stack traces, with paths of this machine, that the exporter leaves in a graph."""
    graph = document.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    parts: list[Any] = [graph, *graph.node, *values, *graph.initializer]
    for part in parts:
        del part.metadata_props[:]
