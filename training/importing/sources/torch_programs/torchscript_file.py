"""Reads a TorchScript file: the arguments of its forward method, and shapes by the examples.

TorchScript is code, which runs when the file is opened: in a separate process with limits.
"""

import dataclasses
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.archive import check_sizes
from training.importing.sources.declared import Declared
from training.importing.sources.examination import Examined, examine, model_inputs
from training.importing.sources.foreign_files import staged_copy
from training.importing.sources.read_tensor import ReadTensor
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs.torch_examination import (
    is_in_order,
    named_by,
    tensors_of_examples,
    torch_run,
)
from training.process.quiet import quiet

FILE = "model.pt"
FORBIDDEN = re.compile(rb"\b(from_file|torch\.save|ops\.aten\.save|torch\.load|rpc_\w+)\b\s*\(")
"""Operators that reach beyond the model, in the source that an archive contains."""


def read(
    path: Path, options: SourceOptions, staging: Path, declared: Declared | None = None
) -> Original:
    """Reads a file.

    Args:
        path: the file.
        options: examples, largest batch and limits.
        staging: folder of ours for the copy.
        declared: what the configuration around the file states.

    Raises:
        SourceError: it is damaged, lacks examples, or cannot be served.
        ArchiveError: it is a zip bomb.
    """
    check_sizes(path)
    _check_operators(path)
    copy = staged_copy(path, staging, FILE)
    examined: Examined = call_apart(
        _examine,
        copy,
        path.name,
        options,
        declared or Declared(),
        where=path.name,
        limits=options.limits,
    )
    return examined.original("torchscript", copy, path.name)


def _check_operators(path: Path) -> None:
    """Refuses code that opens files or other processes, before any of it is loaded.

    Raises:
        SourceError: it calls such an operator.
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".py") and (found := FORBIDDEN.search(archive.read(member))):
                name = found.group(1).decode()
                raise SourceError(
                    f"{path.name} calls {name}, which opens files or connections; script the model "
                    "without it"
                )


def _examine(path: Path, where: str, options: SourceOptions, declared: Declared) -> Examined:
    with quiet(DeprecationWarning):
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    _check_mode(where, module)
    names = _argument_names(where, module)
    if declared.inputs:
        inputs = _by_arguments(declared.inputs, names)
        if not len(inputs) <= len(names):
            raise SourceError(
                f"the configuration has {len(inputs)} inputs, and {where} takes {len(names)} "
                f"({', '.join(names)})"
            )
    else:
        shown = tensors_of_examples(names, options)
        if shown is None:
            arrays = ", ".join(f"{name} [rows, ...]" for name in names)
            raise SourceError(
                f"{where} does not contain the shapes of its inputs; give --examples x.npz with "
                f"{arrays}, as its forward method names them"
            )
        inputs = shown
        given = named_by(names, options.examples or {})
        options = dataclasses.replace(options, examples={t.name: given[t.name] for t in inputs})
    run = torch_run(where, module, [t.name for t in inputs], declared.outputs)
    examined = examine(where, run, inputs, options, labels=declared.labels)
    batch = model_inputs(examined.examples, examined.signature.inputs, 2)
    first = [torch.from_numpy(array.copy()) for array in batch.values()]
    with torch.inference_mode():
        found = module(*first)
    if not is_in_order(found):
        raise SourceError(
            f"{where} returns a {type(found).__name__}, and servers take a tensor or a tuple of "
            "tensors; script a module around it that returns those"
        )
    return examined


def _check_mode(where: str, module: nn.Module) -> None:
    """Refuses a module that was saved in training mode, where layers answer at random."""
    for name, layer in module.named_modules():
        kind = getattr(layer, "original_name", "")
        if layer.training and kind.startswith(("Dropout", "BatchNorm", "AlphaDropout")):
            raise SourceError(
                f"{where} was saved in training mode, in which its layer '{name}' ({kind}) changes "
                "the answers; call model.eval() and save it again"
            )


def _by_arguments(inputs: tuple[ReadTensor, ...], names: list[str]) -> tuple[ReadTensor, ...]:
    """Returns inputs in the order of the arguments, if they have their names."""
    if not {tensor.name for tensor in inputs} <= set(names):
        return inputs
    return tuple(sorted(inputs, key=lambda tensor: names.index(tensor.name)))


def _argument_names(where: str, module: nn.Module) -> list[str]:
    try:
        schema: Any = module.forward.schema  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError) as error:
        raise SourceError(f"{where} has no method forward; save a module that has one") from error
    names = []
    for argument in schema.arguments[1:]:
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            names.append(str(argument.name))
        elif not argument.has_default_value():
            raise SourceError(
                f"{where} takes '{argument.name}', a {argument.type}, and requests carry tensors; "
                "script a module around it that takes tensors only"
            )
        else:
            break  # positions after it cannot be given
    if not names:
        raise SourceError(f"{where} takes no tensors; save a module that does")
    return names
