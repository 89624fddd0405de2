"""Reads weights with the class of their network: a state_dict (.pt), safetensors, or a pickle.

In: the weights, and the class as `file.py:Net` with its arguments. Out: the network as an exported
program, whose signature is that of the examples.

Rules: weights are read by torch's restricted unpickler, which makes tensors only, unless the user
allows pickles; each weight must fit the class by name and shape; a network that is larger than the
memory limit is refused before it is allocated. All of it runs in a separate process.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flambeau.publishing.network_outputs import OutputsInOrder
from model_store.host.memory_limit import GIB
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.archive import ZIP_MAGIC, check_sizes
from training.importing.sources.examination import Examined, examine
from training.importing.sources.foreign_files import file_size
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs.torch_examination import (
    named_by,
    tensors_of_examples,
    torch_run,
)
from training.importing.sources.torch_programs.torch_export import export_module
from training.importing.sources.unpickling import load_torch_file
from training.recipe.targets import call_target, load_target, split_target

FILE = "model.pt2"
TOLD = 5
"""Names of each kind that a message lists."""
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "weights")
"""Keys below which training programs store the weights in their checkpoints."""
_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that DataParallel and torch.compile add to the names of weights."""

Weights = dict[str, Tensor]


def read(path: Path, options: SourceOptions, staging: Path) -> Original:
    """Reads weights.

    Args:
        path: the file.
        options: the class, its arguments, examples and limits.
        staging: folder of ours for the program.

    Raises:
        SourceError: the file is damaged or needs to be unpickled, does not fit the class, or lacks
            examples.
        ArchiveError: it is a zip bomb.
    """
    file_size(path)
    with path.open("rb") as file:
        if file.read(len(ZIP_MAGIC)) == ZIP_MAGIC:
            check_sizes(path)
    if options.network and (target := split_target(options.network)) is not None:
        place, name = target
        if place.endswith(".py"):  # the other process has another working directory
            options = dataclasses.replace(options, network=f"{Path(place).absolute()}:{name}")
    staging.mkdir(parents=True, exist_ok=True)
    examined: Examined = call_apart(
        _export, path.absolute(), staging / FILE, options, where=path.name, limits=options.limits
    )
    source = f"{path.name} of {options.network}" if options.network else path.name
    return examined.original("pt2", staging / FILE, source)


def _export(path: Path, program: Path, options: SourceOptions) -> Examined:
    found = _load(path, options.allow_pickle)
    if isinstance(found, nn.Module):
        return export_network(path.name, found, options, program)
    weights, notes = _weights(path.name, found)
    if not options.network:
        raise SourceError(
            f"{path.name} has {len(weights)} weights and no network; give its class with --network "
            "file.py:Net, and the arguments of the class with --args"
        )
    network = _network(options)
    _load_weights(path.name, network, weights, options.network)
    examined = export_network(path.name, network, options, program)
    return dataclasses.replace(examined, notes=(*notes, *examined.notes))


def export_network(
    where: str, network: nn.Module, options: SourceOptions, program: Path
) -> Examined:
    """Exports a network in evaluation mode, in the isolated process.

    Args:
        where: the file, for messages.
        network: the network, with its weights.
        options: the examples and the largest batch.
        program: output file.

    Raises:
        SourceError: examples are missing, or the network does not run or export.
    """
    import inspect

    network = network.eval()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(network.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in kinds] or list(options.examples or {})
    inputs = tensors_of_examples(names, options)
    if inputs is None:
        wanted = ", ".join(f"{p.name} [rows, ...]" for p in parameters if p.default is p.empty)
        raise SourceError(
            f"{where} does not contain the shapes of its inputs; give --examples x.npz with "
            f"{wanted or 'an array [rows, ...]'}, as forward names them"
        )
    given = named_by(names, options.examples or {})
    ordered = dataclasses.replace(options, examples={t.name: given[t.name] for t in inputs})
    run = torch_run(where, network, [t.name for t in inputs])
    examined = examine(where, run, inputs, ordered)
    outputs = [spec.name for spec in examined.signature.outputs]
    flat = OutputsInOrder(network, outputs).eval()
    export_module(flat, inputs, examined.examples, options, program)
    return examined


def _load(path: Path, allow_pickle: bool) -> object:
    """Returns the content of a file of weights."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except Exception as error:  # safetensors raises its own types
            raise SourceError(
                f"{path.name} is no safetensors file, or damaged ({error}); save it again"
            ) from None
    return load_torch_file(path, allow_pickle)


def _weights(where: str, found: object) -> tuple[Weights, tuple[str, ...]]:
    """Returns the weights in a checkpoint, with notes about what was changed."""
    notes: list[str] = []
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            rest = [str(name) for name in found if name != key]
            notes.append(f"the weights are those below '{key}'; left out: {', '.join(rest[:8])}")
            found = found[key]
            break
    if not isinstance(found, Mapping) or not found:
        raise SourceError(
            f"{where} holds a {type(found).__name__} and no weights by name; save "
            "model.state_dict()"
        )
    weights = {str(name): t for name, t in found.items() if isinstance(t, Tensor)}
    if len(weights) < len(found):
        others = [str(name) for name in found if not isinstance(found[name], Tensor)]
        raise SourceError(
            f"{where} holds more than weights by name ({', '.join(others[:TOLD])}); save "
            "model.state_dict()"
        )
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
            notes.append(f"the prefix '{prefix}' was removed from the names of the weights")
    return weights, tuple(notes)


def _network(options: SourceOptions) -> nn.Module:
    """Makes the network, after its size is known to fit into memory."""
    limit = int(options.limits.memory_gib * GIB)
    needed = _bytes_needed(options)
    if needed is not None and needed > limit:
        raise SourceError(
            f"{options.network} needs {needed / GIB:,.1f} GiB for its weights, and the limit is "
            f"{limit / GIB:g} GiB; give smaller --args"
        )
    network: Any = call_target(options.network, options.args, "network")
    if not isinstance(network, nn.Module):
        raise SourceError(
            f"{options.network} makes a {type(network).__name__}; name a torch.nn.Module"
        )
    return network


def _bytes_needed(options: SourceOptions) -> int | None:
    """Returns the bytes of the weights, from a network without memory; None if that fails."""
    load_target(options.network, "network")  # its own errors are the user's
    try:
        with torch.device("meta"):
            network = call_target(options.network, options.args, "network")
        tensors = [*network.parameters(), *network.buffers()]
        return int(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    except Exception:  # a constructor may compute with its weights, which need memory
        return None


def _load_weights(where: str, network: nn.Module, weights: Weights, target: str) -> None:
    """Loads the weights; names what does not fit, of both sides, in one line."""
    own = network.state_dict()
    missing = [name for name in own if name not in weights]
    unexpected = [name for name in weights if name not in own]
    shapes = [
        f"{name} {list(weights[name].shape)} for {list(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    faults = [
        f"{what}: {', '.join(names[:TOLD])}"
        + (f" and {len(names) - TOLD} more" if len(names) > TOLD else "")
        for what, names in (
            ("missing in the file", missing),
            ("unknown to the class", unexpected),
            ("of another shape", shapes),
        )
        if names
    ]
    if faults:
        raise SourceError(
            f"the weights in {where} do not fit {target}: {'; '.join(faults)}; name the class that "
            "they were trained with, and its arguments with --args"
        )
    network.load_state_dict(weights)
