"""Reads a `.pt2` archive of torch.export: its inputs, and the examples that it was exported with.

Rules: it is opened in a separate process, and only after `program_safety` has found no code. A
program with keyword arguments or named outputs is exported again with tensors in order.
"""

import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flambeau.protocol.signature import SizeLimit
from flambeau.protocol.tensors import Array
from flambeau.publishing.network_outputs import OutputsInOrder, named_outputs
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.archive import check_sizes, member_names, read_member
from training.importing.sources.examination import Examined, examine, model_inputs
from training.importing.sources.foreign_files import staged_copy
from training.importing.sources.read_tensor import UNNAMED, ReadTensor, with_batch_axes
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs.program_safety import check_program
from training.importing.sources.torch_programs.torch_examination import is_in_order, torch_run
from training.importing.sources.torch_programs.torch_export import export_module
from training.process.quiet import quiet

FILE = "model.pt2"

_DATATYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64",
    12: "BOOL", 28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip
"""Datatypes by the archive's number of a tensor's type."""
_UNLIMITED = 2**20
"""Sizes beyond it are no limit: torch writes its largest integer."""
_ASSUMED_SIZE = 2
"""Smallest size that torch.export assumes of a dimension, and does not check."""


def read(path: Path, options: SourceOptions, staging: Path) -> Original:
    """Reads an archive.

    Args:
        path: the file.
        options: examples, largest batch and limits.
        staging: folder of ours for the copy.

    Raises:
        SourceError: it is damaged, contains code, or cannot be served.
        ArchiveError: it is a zip bomb.
    """
    check_sizes(path)
    copy = staged_copy(path, staging, FILE)
    examined: Examined = call_apart(
        _examine, copy, path.name, options, where=path.name, limits=options.limits
    )
    return examined.original("pt2", copy, path.name)


def _examine(path: Path, where: str, options: SourceOptions) -> Examined:
    document = check_program(path, where, options.allow_pickle)
    try:
        inputs = _inputs(where, document)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{where} has a program that cannot be read ({type(error).__name__}: {error}); write "
            "it with torch.export.save"
        ) from error
    with quiet(loggers=("torch.export", "torch._dynamo")):
        loaded = torch.export.load(path)
        module = loaded.module()
    inputs = with_batch_axes(where, _with_sizes(inputs, loaded), options)
    names = [tensor.name for tensor in inputs]
    own = _own_examples(path, names)
    notes: tuple[str, ...] = ()
    if own is not None and options.examples is None:
        notes = (f"the example inputs are those that {where} was exported with",)
    call, in_order = _in_order(module)
    run = torch_run(where, call, names)
    examined = examine(where, run, inputs, options, own_examples=own)
    batch = model_inputs(examined.examples, examined.signature.inputs, 2)
    first = [torch.from_numpy(array.copy()) for array in batch.values()]
    with torch.inference_mode():
        found = call(*first)
    if not (in_order and is_in_order(found)):
        flat = OutputsInOrder(call, list(named_outputs(found)))
        export_module(flat, inputs, examined.examples, options, path)
        notes += (f"{where} takes or returns tensors by name; it was exported again in order",)
    return Examined(
        signature=examined.signature,
        examples=examined.examples,
        made_up=examined.made_up,
        notes=(*notes, *examined.notes),
    )


class _ByPosition(nn.Module):
    """A program that takes keyword arguments or structures, as a function of its tensors."""

    def __init__(self, module: nn.Module, spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.module, self.spec = module, spec

    def forward(self, *inputs: Tensor) -> Any:
        """Maps the inputs in the program's order to its outputs."""
        args, kwargs = pytree.tree_unflatten(list(inputs), self.spec)
        return self.module(*args, **kwargs)


def _in_order(module: nn.Module) -> tuple[nn.Module, bool]:
    """Returns a module that takes tensors by position, and True if that is the program's own."""
    spec = cast(pytree.TreeSpec, module._in_spec)
    args, kwargs = pytree.tree_unflatten([0] * spec.num_leaves, spec)
    if not kwargs and all(isinstance(one, int) for one in args):
        return module, True
    return _ByPosition(module, spec), False


def _inputs(where: str, document: Any) -> list[ReadTensor]:
    """Returns the inputs as the program's document states them."""
    graph = document["graph_module"]
    values = graph["graph"]["tensor_values"]
    found = []
    for spec in graph["signature"]["input_specs"]:
        if "user_input" not in spec:
            continue
        argument = spec["user_input"]["arg"]
        if "as_tensor" not in argument:
            raise SourceError(
                f"{where} takes an input that is no tensor ({', '.join(argument)}); export it with "
                "tensors only"
            )
        name = argument["as_tensor"]["name"]
        found.append(_tensor(where, name, values[name]))
    said = graph["module_call_graph"][0]["signature"].get("forward_arg_names") or []
    if len(said) == len(found):  # torch prefixes names that are taken in the graph
        found = [
            dataclasses.replace(tensor, name=str(name))
            for name, tensor in zip(said, found, strict=True)
        ]
    return found


def _tensor(where: str, name: str, meta: Any) -> ReadTensor:
    if meta["dtype"] not in _DATATYPES:
        raise SourceError(
            f"input '{name}' of {where} has a type that requests cannot carry (number "
            f"{meta['dtype']}); export it with FP32 inputs"
        )
    dims = tuple(int(size["as_int"]) if "as_int" in size else UNNAMED for size in meta["sizes"])
    return ReadTensor(name=name, datatype=_DATATYPES[meta["dtype"]], dims=dims)


def _with_sizes(
    inputs: Sequence[ReadTensor], program: torch.export.ExportedProgram
) -> list[ReadTensor]:
    """Returns the inputs with the names and limits of the dimensions that vary."""
    nodes = {node.name: node for node in program.graph.nodes}
    found = []
    for tensor, node in zip(inputs, program.graph_signature.user_inputs, strict=True):
        dims = list(tensor.dims)
        ranges: dict[int, SizeLimit] = {}
        for axis, size in enumerate(nodes[node].meta["val"].shape):
            if dims[axis] != UNNAMED:
                continue
            expression = size.node.expr
            dims[axis] = str(expression)
            if (sizes := program.range_constraints.get(expression)) is None:
                continue
            low, high = max(int(sizes.lower), 1), None
            if sizes.upper.is_finite and sizes.upper <= _UNLIMITED:
                high = int(sizes.upper)
            if high is not None or low > _ASSUMED_SIZE:
                ranges[axis] = (low, high)
        found.append(dataclasses.replace(tensor, dims=tuple(dims), ranges=ranges))
    return found


def _own_examples(path: Path, names: list[str]) -> Mapping[str, Array] | None:
    """Returns the inputs that the archive was exported with; None if there are none."""
    for name in member_names(path):
        if not re.fullmatch(r"data/sample_inputs/[^/]+\.pt", name):
            continue
        try:
            data = io.BytesIO(read_member(path, name))
            found = pytree.tree_leaves(torch.load(data, weights_only=True, map_location="cpu"))
        except Exception:  # plain tensors only; anything else is no example
            return None
        if len(found) == len(names) and all(isinstance(one, Tensor) for one in found):
            return {n: t.detach().numpy() for n, t in zip(names, found, strict=True)}
    return None
