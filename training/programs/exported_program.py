"""Converts a checkpoint to an exported program, the source of `.pt2` and AOTInductor.

LSTM and GRU layers stay whole in it, so that their length can vary: by default torch.export unrolls
them over the length of the example.

Source of the calls: torch's documentation of `torch.export` and of PyTorch 2 Export quantization;
`flambeau/publishing/recurrent_layers.py` for recurrent layers.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from flambeau.publishing.recurrent_layers import whole_recurrent_layers
from model_store.manifest import Precision
from training.errors import ExportError
from training.network.preprocessing import change_network, network_of
from training.process.quiet import quiet
from training.programs.calibration import calibration_batches
from training.programs.dynamic_axes import axes_of_arguments
from training.programs.narrow_floats import NarrowFloats
from training.programs.own_operators import check_program
from training.programs.step_operations import is_of_step

CHATTY_LOGGERS = ("torch.export", "torch._dynamo", "torch.fx", "torchao")
SEVEN_BITS = True
"""x86 without VNNI adds two 8-bit products in 16 bits and saturates; 7 bits never do."""


def exported_program(
    model: nn.Module,
    example: tuple[Tensor, ...],
    signature: Signature,
    precision: Precision = "fp32",
    calibration: Mapping[str, Array] | None = None,
) -> torch.export.ExportedProgram:
    """Exports the model with a variable batch size.

    Args:
        model: model in evaluation mode.
        example: inputs in order, each [rows, ...] with at least two rows (0 and 1 are special).
        signature: signature of the model, with its variable axes.
        precision: compute precision; inputs and outputs keep the types of the signature.
        calibration: rows of training data by input name, each [rows, ...], for `int8`.

    Raises:
        ExportError: an axis cannot vary, or the model calls custom operators.
        Exception: any exception of torch for an unsupported model.
    """
    if precision == "bf16":
        model = change_network(model, lambda network: NarrowFloats(network, torch.bfloat16)).eval()
    axes = axes_of_arguments(model.forward, signature)
    with quiet(loggers=CHATTY_LOGGERS), torch.no_grad(), whole_recurrent_layers():
        try:
            program = torch.export.export(model, example, dynamic_shapes=axes)
        except UserError as error:
            if "Constraints violated" not in str(error):
                raise
            raise ExportError(
                "torch.export fixes the size of an axis that has to vary, as it does with the "
                "length of nn.RNN; use nn.LSTM or nn.GRU, which it keeps whole, or {kind: "
                "torchscript, method: script}"
            ) from None
        check_program(program)
        if precision != "int8":
            return program
        assert calibration is not None, "int8 is calibrated"
        quantized = _quantized(program.module(), signature, calibration)
        return reexported(quantized, example, signature)


def weights_program(
    model: nn.Module, example: tuple[Tensor, ...], signature: Signature
) -> torch.export.ExportedProgram:
    """Exports the model with the weights of its linear layers in 8 bits (torchao).

    They are widened again for the multiplication: that saves memory and no time.

    Raises:
        ExportError: an axis cannot vary, or there are no linear layers.
        Exception: any exception of torch for an unsupported model.
    """
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    from torchao.utils import unwrap_tensor_subclass

    if not any(isinstance(layer, nn.Linear) for layer in network_of(model).modules()):
        raise ExportError(
            "method: weights quantizes linear layers, and the model has none; use method: static"
        )
    narrow = copy.deepcopy(model)
    with quiet(loggers=CHATTY_LOGGERS):
        quantize_(network_of(narrow), Int8WeightOnlyConfig())
        # As plain tensors the program stores them without torchao's classes.
        unwrap_tensor_subclass(narrow)
    return exported_program(narrow, example, signature)


def reexported(
    quantized: nn.Module, example: tuple[Tensor, ...], signature: Signature
) -> torch.export.ExportedProgram:
    """Exports a graph quantized by pt2e, without the weights that are no longer used.

    pt2e keeps the FP32 weights beside the 8-bit ones, and torch.export would write them all.
    """
    assert isinstance(quantized, torch.fx.GraphModule), "pt2e gives graphs"
    read = {
        str(node.target) for node in quantized.graph.nodes if node.op == "get_attr" and node.users
    }
    for name, _ in list(quantized.named_parameters(remove_duplicate=False)):
        if name not in read:
            _forget_weight(quantized, name)
    axes = axes_of_arguments(quantized.forward, signature)
    return torch.export.export(quantized, example, dynamic_shapes=axes)


def x86_quantizer(qat: bool = False) -> Any:
    """Returns the pt2e quantizer for x86: weights per channel, and activations."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    class NetworkQuantizer(x86.X86InductorQuantizer):  # type: ignore[misc]
        """Leaves the preprocessing steps unquantized."""

        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            annotated: torch.fx.GraphModule = super().annotate(model)
            for node in filter(is_of_step, annotated.graph.nodes):
                node.meta.pop("quantization_annotation", None)
            return annotated

    quantizer = NetworkQuantizer()
    settings = x86.get_default_x86_inductor_quantization_config(is_qat=qat, reduce_range=SEVEN_BITS)
    return quantizer.set_global(settings)


def has_loops(program: torch.export.ExportedProgram) -> bool:
    """Checks if a program has whole recurrent layers, or a loop of its own."""
    aten = torch.ops.aten
    loops = (aten.lstm.input, aten.gru.input, torch.ops.higher_order.while_loop)
    return any(node.target in loops for node in program.graph.nodes)


def _quantized(module: nn.Module, signature: Signature, rows: Mapping[str, Array]) -> nn.Module:
    """Quantizes weights and activations to 8 bits, with calibrated ranges (pt2e, static)."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(module, x86_quantizer())
    for batch in calibration_batches(rows, signature, signature.max_batch_size):
        prepared(*(torch.from_numpy(batch[spec.name]) for spec in signature.inputs))
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def _forget_weight(graph: torch.fx.GraphModule, name: str) -> None:
    owner, _, key = name.rpartition(".")
    for node in list(graph.graph.nodes):
        if node.op == "get_attr" and node.target == name:
            graph.graph.erase_node(node)
    delattr(graph.get_submodule(owner), key)
    graph.recompile()
