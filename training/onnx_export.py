"""Checkpoint to ONNX, by the dynamo exporter, with a batch dimension of any size.

Axes that the signature's padding names vary from 1 to its last bucket, those of its `dynamic`
between their smallest and largest size.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from model_store.signature import Signature
from training.quiet import quiet

if TYPE_CHECKING:
    from onnx import ModelProto

CHATTY_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
"""They talk about missing torchvision operators and the like, which is not the user's business."""


def export_onnx(
    model: nn.Module, example: tuple[Tensor, ...], signature: Signature, path: Path
) -> None:
    """Exports the model to one file, weights included, which says nothing about this machine.

    Args:
        model: in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows (0 and 1 are special).
        signature: names the graph's inputs and outputs.
        path: the file to write.

    Raises:
        Exception: whatever the exporter raises for a model it cannot take.
    """
    import onnx

    # The exporter's own internals warn about deprecated parts of torch.
    with quiet(loggers=CHATTY_LOGGERS):
        torch.onnx.export(
            model,
            example,
            str(path),
            dynamo=True,
            verbose=False,
            external_data=False,
            dynamic_shapes=_dynamic_shapes(signature),
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
        )
    document = onnx.load(path)
    strip_metadata(document)
    onnx.save(document, path)


def _dynamic_shapes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """For each input, its axes of any size."""
    batch, padding = torch.export.Dim("batch"), signature.padding
    shapes: list[dict[int, Any]] = [{0: batch} for _ in signature.inputs]
    for number, (spec, shape) in enumerate(zip(signature.inputs, shapes, strict=True)):
        for axis, (low, high) in signature.dynamic.get(spec.name, {}).items():
            shape[axis] = torch.export.Dim(f"size_{number}_{axis}", min=low, max=high)
    if padding is not None:
        length = torch.export.Dim("length", min=1, max=padding.buckets[-1])
        for spec, shape in zip(signature.inputs, shapes, strict=True):
            varying = padding.axis_of(spec.name)
            if varying is not None:
                shape[varying] = length
    return tuple(shapes)


def strip_metadata(document: "ModelProto") -> None:
    """Removes the stack traces, with paths of this machine, that the exporter leaves in a graph."""
    graph = document.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    parts: list[Any] = [graph, *graph.node, *values, *graph.initializer]
    for part in parts:
        del part.metadata_props[:]
