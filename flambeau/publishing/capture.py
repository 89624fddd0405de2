"""Captures a module or a function of tensors: its files, its outputs for the examples, a signature.

In: the model and its examples, in the caller's process. Out: `Captured`.

Rules: only torch's own exporters run here, in a forked child where that is possible; the model is
never changed, pickled or moved; a model whose answers cannot be verified is refused with the cause:
random outputs, layers in training mode, rows that depend on each other, inputs without effect.
"""

import importlib
import io
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from flambeau.protocol.available_memory import lack_of_memory
from flambeau.protocol.heavy_imports import heavy_imports
from flambeau.protocol.row_form import to_rows
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import Array, datatype_of
from flambeau.publishing.batch_axes import BatchAxes, find_batch_axes, repeated, row_count, rows_of
from flambeau.publishing.errors import CaptureError, ExampleError, PublishError
from flambeau.publishing.examples import Examples, Sizes
from flambeau.publishing.forked import (
    ForkedCallError,
    ForkUnavailableError,
    call_in_fork,
    fork_hazard,
    innermost_line,
)
from flambeau.publishing.model_run import CalledByName, Model, check_finite, run_model
from flambeau.publishing.network_outputs import OutputsInOrder
from flambeau.publishing.recurrent_layers import whole_recurrent_layers
from flambeau.publishing.size_trials import Place, TakenSizes, other_sizes, taken_sizes
from flambeau.publishing.step_examples import stepped

PROGRAM, SCRIPT = "program.pt2", "module.torchscript.pt"
"""Files of the captured model."""
_SYMBOL = re.compile(r"[a-z]\w*")
"""Names in the sizes of torch's programs, such as `2*s7 + 1`."""
MIN_EXPORT_ROWS = 2
"""Exporters specialise on 0 and 1 rows."""
FULL_BYTES = 2**16
"""Free bytes of a disk below which a file could not be written."""
_ONE_EXPORT = threading.Lock()
"""torch's exporters keep state of the process: two at once fail, and so does whatever follows."""
_RANDOM_LAYERS = (
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)

Labels = Mapping[str, Sequence[str]] | Sequence[str]
Say = Callable[[str], None]
Save = Callable[[Callable[[Any], None], Path], None]
"""Calls a function of torch's with the file to write, a path or a buffer."""
Rows = tuple[dict[str, Array], dict[str, Array]]
"""Inputs and outputs by name, each [rows, ...]."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A model as files, with its own outputs for the examples."""

    files: dict[str, str]
    """File by kind: `pt2`, `torchscript`; at least one."""
    refusals: dict[str, str]
    """Reason by kind that could not be captured."""
    signature: Signature
    rows: list[Rows]
    """Inputs and outputs of the examples, [rows, ...]: of the first size, and of each other."""
    notes: tuple[str, ...] = ()
    """Facts about the model, for the user."""


def capture(
    model: Model,
    examples: Examples,
    *,
    folder: Path,
    outputs: Sequence[str] | None = None,
    labels: Labels | None = None,
    max_batch_size: int = 32,
    script: bool = False,
    say: Say = lambda _: None,
) -> Captured:
    """Captures a model.

    Args:
        model: a module in evaluation mode on the CPU, or a function of tensors.
        examples: its inputs, in order.
        folder: destination of the files.
        outputs: names of the outputs, in order; None for those of the model.
        labels: names of the classes by output, or those of the only output.
        max_batch_size: largest batch of a server, in rows.
        script: True to capture TorchScript too.
        say: receives a line if it is done in another way than the usual one.

    Raises:
        CaptureError: torch cannot capture the model, or its answers cannot be verified.
        ExampleError: the examples do not fit the model.
    """
    _check_mode(model)
    _check_tensors(model, folder)
    call = CalledByName(model, examples.names) if examples.by_name else model
    axes = find_batch_axes(call, examples.inputs, outputs, examples.batch_axes, max_batch_size)
    if not axes.has_batch:
        max_batch_size = 1
    dynamic = examples.sizes(axes.inputs)
    alike, others = _by_size(call, axes, examples)
    found = _run(call, axes, alike, max_batch_size)
    flat = OutputsInOrder(call, list(axes.outputs))
    flat.training = False  # the model's own modules stay as they are
    wanted = _Wanted(examples.inputs, axes.inputs, dynamic, max_batch_size)
    made = _capture_files(flat, wanted, folder, script, say)
    sizes = taken_sizes(call, examples, axes.inputs, dynamic, made.related)
    if not made.files:
        reasons = "; ".join(f"{kind}: {reason}" for kind, reason in made.refusals.items())
        lost = f"torch cannot capture the model: {reasons}"
        if shutil.disk_usage(folder).free < FULL_BYTES:
            lost = (
                f"the disk of {folder.parent} is full: {lost}; free space there, or set TMPDIR to "
                "another folder"
            )
        raise CaptureError(lost)
    sized = [_run(call, axes, [one], max_batch_size) for one in (*others, *sizes.trials)]
    shapes = [outputs for _, outputs in sized]
    for one in [] if "pt2" in made.files else other_sizes(examples.inputs, axes.inputs, dynamic):
        with suppress(CaptureError, ExampleError):
            shapes.append(_run(call, axes, [one], max_batch_size)[1])
    specs = _output_specs(axes.outputs, found[1], shapes, made.varying)
    signature = _signature(examples, axes, specs, sizes, labels or (), max_batch_size)
    notes = axes.notes() + examples.notes(dynamic) + sizes.notes
    return Captured(made.files, made.refusals, signature, [found, *sized], notes)


def _check_mode(model: Model) -> None:
    """Refuses layers that give other answers in training mode."""
    if not isinstance(model, nn.Module):
        return
    for name, layer in model.named_modules():
        is_random = isinstance(layer, _RANDOM_LAYERS) or getattr(layer, "dropout", 0.0) not in (
            0.0,
            None,
        )
        if layer.training and is_random and not isinstance(layer, nn.ModuleList):
            raise CaptureError(
                f"the model is in training mode, in which its layer '{name or 'model'}' "
                f"({type(layer).__name__}) changes the answers; call model.eval() first"
            )


def _check_tensors(model: Model, folder: Path) -> None:
    """Refuses a module whose tensors are elsewhere, or larger than memory or the folder's disk."""
    if not isinstance(model, nn.Module):
        return
    stored: dict[int, int] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise CaptureError(
                f"the model's '{name}' is on the device meta, without values; load its weights "
                "(model.to_empty(device='cpu'), then load_state_dict)"
            )
        if tensor.device.type != "cpu":
            raise CaptureError(
                f"the model's '{name}' is on {tensor.device}, and artifacts are verified on the "
                "CPU; pass model.cpu()"
            )
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        is_expanded = tensor.nbytes > storage.nbytes()
        if is_expanded and (lack := lack_of_memory(tensor.nbytes)):
            raise CaptureError(
                f"the model's '{name}' {list(tensor.shape)} {lack}: it is expanded from "
                f"{storage.nbytes():,} bytes; expand it in forward, or make it smaller"
            )
    needed, free = sum(stored.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise CaptureError(
            f"the model has {needed:,} bytes, and {free:,} are free in {folder.parent}, where it "
            "is captured; free space there, or set TMPDIR to another folder"
        )


def _by_size(
    model: Model, axes: BatchAxes, examples: Examples
) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Returns the examples of the first one's size, as steps of a model with states; the others."""
    alike, others = examples.by_size(axes.inputs)
    if examples.sequence is not None:
        run = partial(_run, model, axes, max_batch_size=1)
        alike = [stepped(run, one, axes, examples.sequence) for one in alike]
    return alike, others


def _run(
    model: Model,
    axes: BatchAxes,
    examples: Sequence[Mapping[str, Tensor]],
    max_batch_size: int,
) -> Rows:
    """Runs all rows of the examples in batches; returns the inputs and outputs as rows."""
    inputs: list[dict[str, Array]] = []
    outputs: list[dict[str, Array]] = []
    for example in examples:
        rows = row_count(example, axes.inputs)
        for start in range(0, rows, max_batch_size):
            batch = rows_of(example, axes.inputs, start, max_batch_size)
            count = row_count(batch, axes.inputs)
            found = run_model(model, list(axes.outputs), batch)
            check_finite(found)
            arrays = {name: tensor.numpy() for name, tensor in batch.items()}
            inputs.append(to_rows(arrays, _row_specs(arrays, axes.inputs), count))
            outputs.append(to_rows(found, _row_specs(found, axes.outputs), count))
    return _joined(inputs), _joined(outputs)


def _row_specs(arrays: Mapping[str, Array], axes: Mapping[str, int | None]) -> list[TensorSpec]:
    return [_spec(name, array, axes[name], set()) for name, array in arrays.items()]


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError as error:
        raise CaptureError(
            f"examples of equal sizes give outputs of different sizes ({error}); let the sizes of "
            "outputs depend on those of inputs only"
        ) from error


def _signature(
    examples: Examples,
    axes: BatchAxes,
    outputs: tuple[TensorSpec, ...],
    sizes: TakenSizes,
    labels: Labels,
    max_batch_size: int,
) -> Signature:
    first = examples.inputs
    varying = {name: {*sizes.alone.get(name, {}), *sizes.together.get(name, {})} for name in first}
    try:
        return Signature(
            inputs=tuple(
                _spec(name, tensor.numpy(), axes.inputs[name], varying[name])
                for name, tensor in first.items()
            ),
            outputs=outputs,
            max_batch_size=max_batch_size,
            dynamic=sizes.alone,
            limits={name: {**axes} for name, axes in sizes.together.items()},
            labels=_labels(labels, [spec.name for spec in outputs]),
        )
    except ValidationError as error:
        raise PublishError(explain(error, Signature)) from error


def _labels(labels: Labels, outputs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the names of classes by output; a list alone is for the only output."""
    if not labels:
        return {}
    if isinstance(labels, Mapping):
        return {name: tuple(map(str, names)) for name, names in labels.items()}
    if isinstance(labels, str) or len(outputs) > 1:
        raise PublishError(
            f"labels is {labels!r}; give names of classes by output, as in "
            f'{{"{outputs[0]}": ["cat", "dog"]}}'
        )
    return {outputs[0]: tuple(map(str, labels))}


def _output_specs(
    batch_axes: Mapping[str, int | None],
    found: Mapping[str, Array],
    others: Sequence[Mapping[str, Array]],
    varying: Sequence[Sequence[int]],
) -> tuple[TensorSpec, ...]:
    """Returns the specs of the outputs: from their values as rows, and those at other sizes.

    Args:
        batch_axes: batch axis by output.
        found: outputs of the examples.
        others: outputs at other sizes.
        varying: axes by output that the program says vary; empty without a program.
    """
    specs = []
    for number, (name, rows) in enumerate(found.items()):
        shape = [
            -1 if any(other[name].shape[axis] != rows.shape[axis] for other in others) else size
            for axis, size in enumerate(rows.shape[1:], start=1)
        ]
        if (batch_axis := batch_axes[name]) is not None:
            shape.insert(batch_axis, -1)
        for axis in varying[number] if varying else ():
            shape[axis] = -1
        spec = TensorSpec(
            name=name, datatype=datatype_of(rows), shape=tuple(shape), batch_axis=batch_axis
        )
        specs.append(spec)
    return tuple(specs)


def _spec(name: str, array: Array, batch_axis: int | None, varying: set[int]) -> TensorSpec:
    changing = varying if batch_axis is None else varying | {batch_axis}
    shape = tuple(-1 if axis in changing else size for axis, size in enumerate(array.shape))
    return TensorSpec(name=name, datatype=datatype_of(array), shape=shape, batch_axis=batch_axis)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Inputs of the files."""

    inputs: Mapping[str, Tensor]
    batch_axes: Mapping[str, int | None]
    dynamic: Sizes
    max_batch_size: int

    def arguments(self) -> tuple[Tensor, ...]:
        """Returns the example that exporters get, in order."""
        return tuple(repeated(self.inputs, self.batch_axes, MIN_EXPORT_ROWS).values())


@dataclass(frozen=True, slots=True)
class _Made:
    """Files that were written, and what the exported program tells."""

    files: dict[str, str] = field(default_factory=dict)
    """File by kind."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Reason by kind that could not be captured."""
    related: list[Place] = field(default_factory=list)
    """Axes whose sizes depend on each other."""
    varying: list[list[int]] = field(default_factory=list)
    """Axes of each output that vary, in the model's own form; empty without a program."""


def _capture_files(
    flat: OutputsInOrder, wanted: _Wanted, folder: Path, script: bool, say: Say
) -> _Made:
    """Writes the files."""
    made, unused = _Made(), []
    files, refusals = made.files, made.refusals
    try:
        unused, places, varying = _call(partial(_export, flat, wanted, folder / PROGRAM), say)
        made.related.extend((name, axis) for name, axis in places)  # JSON has no tuples
        made.varying.extend(varying)
        files["pt2"] = PROGRAM
    except ForkedCallError as error:
        refusals["pt2"] = f"torch.export: {error}"
    if unused:
        raise CaptureError(
            f"the outputs do not depend on input '{unused[0]}'; drop it from the examples and from "
            "the model's arguments"
        )
    if script or not files:
        try:
            call = partial(_to_torchscript, flat, wanted.arguments(), folder / SCRIPT)
            traced = _call(call, say)
            if traced:
                say(f"tracing the model for TorchScript, which cannot compile it: {traced}")
            files["torchscript"] = SCRIPT
        except ForkedCallError as error:
            refusals["torchscript"] = f"torch.jit: {error}"
    return made


def _call(call: Callable[[Save], Any], say: Say) -> Any:
    """Makes the call in a forked child, or here where that is impossible.

    Args:
        call: gets the function with which it writes files.
        say: receives a line if the call is made here.

    Raises:
        ForkedCallError: the call raised.
    """
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    hazard = "CUDA is in use here" if cuda else fork_hazard()
    if not hazard:
        try:
            return call_in_fork(lambda: _with_one_thread(lambda: call(_save_at_once)))
        except ForkUnavailableError as error:
            hazard = str(error)
    say(f"exporting in this process, whose memory grows by it, and not in a forked one: {hazard}")
    try:
        with _ONE_EXPORT:
            return _quietly(lambda: call(_save_through_memory))
    except Exception as error:  # torch may raise anything for a model it cannot export
        raise ForkedCallError(innermost_line(error)) from error


def _save_at_once(write: Callable[[Any], None], path: Path) -> None:
    write(path)


def _save_through_memory(write: Callable[[Any], None], path: Path) -> None:
    """Writes a file of torch's, which aborts its process if the disk is full."""
    buffer = io.BytesIO()
    write(buffer)
    path.write_bytes(buffer.getbuffer())


def _with_one_thread(call: Callable[[], Any]) -> Any:
    torch.set_num_threads(1)  # the threads of the caller's process do not exist in the child
    with heavy_imports():
        importlib.import_module("torch._dynamo")
    return _quietly(call)


def _quietly(call: Callable[[], Any]) -> Any:
    """Makes the call without warnings of torch's exporters, which the caller may have as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def _export(
    flat: OutputsInOrder, wanted: _Wanted, path: Path, save: Save
) -> tuple[list[str], list[Place], list[list[int]]]:
    """Writes the exported program.

    Returns:
        The names of inputs that nothing uses, the axes whose sizes depend on each other, and the
        axes of each output that vary.
    """
    batch = torch.export.Dim("batch", min=1, max=max(wanted.max_batch_size, 2))
    axes: list[dict[int, Any]] = []
    for name, batch_axis in wanted.batch_axes.items():
        varying: dict[int, Any] = {} if batch_axis is None else {batch_axis: batch}
        for axis, (low, high) in wanted.dynamic.get(name, {}).items():
            varying[axis] = torch.export.Dim.DYNAMIC(min=low, max=high)
        axes.append(varying)
    with torch.no_grad(), whole_recurrent_layers() if wanted.dynamic else nullcontext():
        program = torch.export.export(flat, wanted.arguments(), dynamic_shapes=(tuple(axes),))
    save(partial(torch.export.save, program), path)
    nodes = {node.name: node for node in program.graph.nodes}

    def symbols(node: str) -> list[set[str]]:
        return [set(_SYMBOL.findall(str(size))) for size in nodes[node].meta["val"].shape]

    inputs = dict(zip(wanted.inputs, program.graph_signature.user_inputs, strict=True))
    sizes = {
        (name, axis): symbols(inputs[name])[axis]
        for name, axes_of in wanted.dynamic.items()
        for axis in axes_of
    }
    related = [
        place
        for place, own in sizes.items()
        if any(own & others for other, others in sizes.items() if other != place)
    ]
    answers = [
        [axis for axis, own in enumerate(symbols(node)) if own]
        for node in program.graph_signature.user_outputs
    ]
    return [name for name, node in inputs.items() if not nodes[node].users], related, answers


def _to_torchscript(
    flat: OutputsInOrder, arguments: tuple[Tensor, ...], path: Path, save: Save
) -> str:
    """Writes the model as TorchScript: compiled if its code allows that, else traced.

    Returns:
        The reason if it is a module that was traced; empty otherwise.
    """
    model: Any = flat.network
    reason = ""
    if isinstance(model, torch.jit.ScriptModule):
        save(partial(torch.jit.save, model), path)
        return reason
    with warnings.catch_warnings(), torch.inference_mode():
        if isinstance(model, nn.Module):
            try:
                save(partial(torch.jit.save, torch.jit.script(model)), path)
                return reason
            except Exception as error:  # it is traced instead
                reason = innermost_line(error)
        warnings.simplefilter("error", TracerWarning)
        traced: Any = torch.jit.trace(flat, arguments)  # type: ignore[no-untyped-call]
        save(partial(torch.jit.save, traced), path)
    return reason
