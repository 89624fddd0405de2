"""Detects the layers of a network and the capabilities of this machine that exports depend on.

In: the trained model. Out: the plain records that `training.auto.candidates` uses.
"""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.host.cpu_features import cpu_features
from training.auto.candidates import Machine, ModelContents
from training.errors import ExportError
from training.exporters.half_precision import half_device
from training.network.model import for_export, run_model
from training.recipe.kinds.export_kinds import EXPORT_KINDS

CONVOLUTIONS = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
PRODUCTS = frozenset(
    {functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm}
)
ATTENTION = frozenset(
    {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}
)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
LSTM = (nn.LSTM, nn.LSTMCell)


def model_contents(
    model: nn.Module, example: Mapping[str, Array], signature: Signature
) -> ModelContents:
    """Inspects the model's layers, and its torch calls for an example.

    Args:
        model: model in evaluation mode.
        example: rows by input name, in argument order, each [rows, ...].
        signature: signature of the model, which shows if lengths vary.
    """
    twin = for_export(model)
    layers = [*model.modules(), *twin.modules()]
    with _Calls() as calls:
        run_model(twin, list(example.values()))
    return ModelContents(
        convolutions=bool(CONVOLUTIONS & calls.functions),
        linear=bool(PRODUCTS & calls.functions),
        attention=bool(ATTENTION & calls.functions),
        recurrent=any(isinstance(layer, RECURRENT) for layer in layers),
        lstm=any(isinstance(layer, LSTM) for layer in layers),
        varying_length=signature.padding is not None,
    )


def this_machine() -> Machine:
    """Returns the capabilities of this machine."""
    asked = {found.module for kind in EXPORT_KINDS.values() for found in kind.packages("int8")}
    return Machine(
        cpu_features=frozenset(cpu_features()),
        packages=frozenset(name for name in asked if importlib.util.find_spec(name)),
        compiler=any(shutil.which(name) for name in ("g++", "clang++")),
        without_fp16=_without_fp16(),
    )


def _without_fp16() -> str:
    try:
        half_device()
    except ExportError as error:
        return str(error)
    return ""


class _Calls(TorchFunctionMode):
    """Records the torch functions that are called, by any code."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[Callable[..., Any]] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.functions.add(func)
        return func(*args, **(kwargs or {}))
