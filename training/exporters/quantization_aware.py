"""Training for 8 bits: a network that rounds as its quantized artifact will, and can learn.

In: a trained network. Out: a module for the training loop, with the network's weights and the
ranges of its activations, and from those, later, the exported program in 8 bits (pt2e).

Rules kept here: the rounding is all that differs from the network in evaluation mode. Norms keep
the statistics of the training and nothing is dropped out: torchao's own training mode turns every
dropout into one of a half. Ranges are seen on training rows only: an evaluation changes nothing.

Source: torchao's documentation of PyTorch 2 Export quantization-aware training.
"""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_model
from torch import Tensor, nn

from model_store.signature import Signature
from training.exporters.exported_program import (
    CHATTY_LOGGERS,
    exported_program,
    reexported,
    x86_quantizer,
)
from training.quiet import quiet


class QuantizationAware(nn.Module):
    """A network with rounding between its operations, that trains like any other.

    Args:
        model: the network in the form that exporters take, in evaluation mode; it stays as it is.
        example: inputs in order, each [rows, ...] with at least two rows.
        signature: says which axes vary.
        largest_batch: rows of one step.

    Raises:
        ExportError: an axis cannot vary.
        Exception: whatever torch raises for a model it cannot take.
    """

    def __init__(
        self,
        model: nn.Module,
        example: tuple[Tensor, ...],
        signature: Signature,
        largest_batch: int = 1,
    ) -> None:
        super().__init__()
        from torchao.quantization.pt2e import move_exported_model_to_eval
        from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

        rows = max(largest_batch, signature.max_batch_size)
        trained_on = signature.model_copy(update={"max_batch_size": rows})
        program = exported_program(copy.deepcopy(model), example, trained_on)
        with quiet(loggers=CHATTY_LOGGERS):
            prepared = prepare_qat_pt2e(program.module(), x86_quantizer(qat=True))
            move_exported_model_to_eval(prepared)
            with torch.no_grad():
                prepared(*example)  # gives the ranges their shapes
        self.graph: Any = prepared
        for rounding in self._roundings():
            _forget(rounding)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        """What the network gives, rounded on the way."""
        return self.graph(*inputs)

    def train(self, mode: bool = True) -> Self:
        """Whether ranges follow what they see; the graph itself knows no modes."""
        self.training = mode
        for rounding in self._roundings():
            rounding.enable_observer(mode)
        return self

    def converted(self, example: tuple[Tensor, ...], signature: Signature) -> Any:
        """The exported program in 8 bits, as a `torch.export.ExportedProgram`.

        Args:
            example: as above.
            signature: says which axes vary.
        """
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        self.eval()
        with quiet(loggers=CHATTY_LOGGERS), torch.no_grad():
            return reexported(convert_pt2e(copy.deepcopy(self.graph)), example, signature)

    def _roundings(self) -> Iterator[Any]:
        from torchao.quantization.pt2e import FakeQuantizeBase

        return (m for m in self.graph.modules() if isinstance(m, FakeQuantizeBase))


def load_quantization_aware(
    model: nn.Module, example: tuple[Tensor, ...], signature: Signature, weights: Path
) -> QuantizationAware:
    """The module as it was trained.

    Args:
        model: the network with any weights of the right size.
        example: inputs in order, each [rows, ...] with at least two rows.
        signature: says which axes vary.
        weights: what `QuantizationAware` learned, as safetensors.
    """
    found = QuantizationAware(model, example, signature)
    load_model(found, str(weights))
    return found.eval()


def _forget(rounding: Any) -> None:
    """Drops the example's ranges, and a constant that checkpoints cannot hold twice."""
    observer = rounding.activation_post_process
    observer.min_val.fill_(math.inf)
    observer.max_val.fill_(-math.inf)
    observer.register_buffer("eps", observer.eps, persistent=False)
