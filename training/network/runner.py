"""Runners: functions that run a model on NumPy arrays, [rows, ...], by input and output names."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from flambeau.protocol.row_form import Run
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from training.network.model import run_model

Runner = Run


def module_runner(model: nn.Module, signature: Signature) -> Runner:
    """Returns a runner of a torch module, which is put into evaluation mode."""
    return callable_runner(model.eval(), signature)


def callable_runner(model: Callable[..., Any], signature: Signature) -> Runner:
    """Returns a runner of a function that takes and returns tensors in the signature's order."""
    names = [spec.name for spec in signature.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return run_model(model, [inputs[spec.name] for spec in signature.inputs], names)

    return run
