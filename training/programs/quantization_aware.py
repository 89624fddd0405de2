"""Quantization-aware training: a trainable network with the rounding of its 8-bit artifact.

In: a trained network. Out: a module for the training loop, with the network's weights and the
ranges of its activations, and from those, later, the exported program in 8 bits (pt2e).

Rules: only the rounding differs from the network in evaluation mode. Batch norms keep the training
statistics and are folded into the convolutions before them, as in the artifact: `prepare_qat_pt2e`
would keep them separate, and take a minute to fold them. Dropout is off: torchao's own training
mode sets every dropout to one half. Ranges are measured on training rows only: an evaluation
changes nothing.

Source: torchao's documentation of PyTorch 2 Export quantization-aware training.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_model
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from training.process.quiet import quiet
from training.programs.exported_program import (
    CHATTY_LOGGERS,
    exported_program,
    reexported,
    x86_quantizer,
)


class QuantizationAware(nn.Module):
    """A network with rounding between its operations, that trains like any other.

    Args:
        model: exportable network in evaluation mode; it is not modified.
        example: inputs in order, each [rows, ...] with at least two rows.
        signature: signature of the model, with its variable axes.
        largest_batch: rows of one step.

    Raises:
        ExportError: an axis cannot vary.
        Exception: any exception of torch for an unsupported model.
    """

    def __init__(
        self,
        model: nn.Module,
        example: tuple[Tensor, ...],
        signature: Signature,
        largest_batch: int = 1,
    ) -> None:
        super().__init__()
        from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

        rows = max(largest_batch, signature.max_batch_size)
        trained_on = signature.model_copy(update={"max_batch_size": rows})
        program = exported_program(copy.deepcopy(model), example, trained_on)
        with quiet(loggers=CHATTY_LOGGERS):
            # With this quantizer it inserts the rounding of training, with norms already folded.
            prepared = prepare_pt2e(program.module(), x86_quantizer(qat=True))
            with torch.no_grad():
                prepared(*example)  # initialises the shapes of the ranges
        self.graph: Any = prepared
        for rounding in self._roundings():
            _forget_ranges(rounding)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        """Returns the network's outputs, with rounding between operations."""
        return self.graph(*inputs)

    def train(self, mode: bool = True) -> Self:
        """Switches the update of ranges; the graph itself has no modes."""
        self.training = mode
        for rounding in self._roundings():
            rounding.enable_observer(mode)
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads as every module. A safetensors file lacks the version metadata, which is added.

        Without it torchao assumes its ranges have an old format, and changes their epsilon.
        """
        versioned = OrderedDict(state_dict)
        versioned._metadata = self.state_dict()._metadata  # type: ignore[attr-defined]
        return super().load_state_dict(versioned, strict, assign)

    def converted(self, example: tuple[Tensor, ...], signature: Signature) -> Any:
        """Returns the exported program in 8 bits, as a `torch.export.ExportedProgram`.

        Args:
            example: see the class.
            signature: signature of the model, with its variable axes.
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
    """Loads the module as it was trained.

    Args:
        model: network with any weights of the right shape.
        example: inputs in order, each [rows, ...] with at least two rows.
        signature: signature of the model, with its variable axes.
        weights: weights that `QuantizationAware` learned, as safetensors.
    """
    found = QuantizationAware(model, example, signature)
    load_model(found, str(weights))
    return found.eval()


def _forget_ranges(rounding: Any) -> None:
    """Resets the ranges that the example set."""
    rounding.activation_post_process.min_val.fill_(math.inf)
    rounding.activation_post_process.max_val.fill_(-math.inf)
