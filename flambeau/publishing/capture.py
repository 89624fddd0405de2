"""Captures a module or a function of tensors: its files, its outputs for the examples, a signature.

In: the model and its examples, in the caller's process. Out: `Captured`.

Rules: only torch's own exporters run here, in a forked child where that is possible; the model is
never changed, pickled or moved; a model whose answers cannot be verified is refused with the cause:
random outputs, layers in training mode, rows that depend on each other, inputs without effect.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from flambeau.publishing.errors import CaptureError, ExampleError
from flambeau.publishing.examples import Examples
from flambeau.publishing.forked import (
    ForkedCallError,
    ForkUnavailableError,
    call_in_fork,
    innermost_line,
)
from flambeau.publishing.network_outputs import OutputError, OutputsInOrder, named_outputs
from flambeau.publishing.recurrent_layers import whole_recurrent_layers

PROGRAM, SCRIPT = "program.pt2", "module.torchscript.pt"
"""Files of the captured model."""
ROUNDING_SHARE = 1e-4
"""Share of the largest output: a smaller difference is FP32 rounding in another batch size."""
MIN_EXPORT_ROWS = 2
"""Exporters specialise on 0 and 1 rows."""
_RANDOM_LAYERS = (
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)

Model = nn.Module | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """A model as files, with its own outputs for the examples."""

    files: dict[str, str]
    """File by kind: `pt2`, `torchscript`; at least one."""
    refusals: dict[str, str]
    """Reason by kind that could not be captured."""
    signature: Signature
    outputs: dict[str, Array]
    """Outputs for the examples, [rows, ...]."""
    others: list[dict[str, Array]] = field(default_factory=list)
    """Outputs for the examples at other sizes."""


def capture(
    model: Model,
    examples: Examples,
    *,
    folder: Path,
    outputs: Sequence[str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
    max_batch_size: int = 32,
    script: bool = False,
) -> Captured:
    """Captures a model.

    Args:
        model: a module in evaluation mode on the CPU, or a function of tensors.
        examples: its inputs, in order.
        folder: destination of the files.
        outputs: names of the outputs, in order; None for those of the model.
        labels: names of the classes of an output.
        max_batch_size: largest batch of a server, in rows.
        script: True to capture TorchScript too.

    Raises:
        CaptureError: torch cannot capture the model, or its answers cannot be verified.
        ExampleError: the examples do not fit the model.
    """
    _check_mode(model)
    _check_device(model)
    found = _run(model, outputs, examples.inputs, max_batch_size)
    names = list(found)
    _check_repeats(found, _run(model, names, examples.inputs, max_batch_size))
    _check_rows(model, examples.inputs, found)
    others = [_run(model, names, other, max_batch_size) for other in examples.others]
    signature = _signature(examples, found, others, labels or {}, max_batch_size)
    flat = OutputsInOrder(model, names)
    flat.training = False  # the model's own modules stay as they are
    files, refusals = _capture_files(flat, examples, signature, folder, script)
    if not files:
        reasons = "; ".join(f"{kind}: {reason}" for kind, reason in refusals.items())
        raise CaptureError(f"torch cannot capture the model: {reasons}")
    return Captured(files, refusals, signature, found, others)


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


def _check_device(model: Model) -> None:
    if not isinstance(model, nn.Module):
        return
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise CaptureError(
                f"the model's '{name}' is on {tensor.device}, and artifacts are verified on the "
                "CPU; pass model.cpu()"
            )


def _run(
    model: Model, names: Sequence[str] | None, inputs: Mapping[str, Tensor], max_batch_size: int
) -> dict[str, Array]:
    """Runs all rows in batches; returns the outputs by name, [rows, ...]."""
    rows = _row_count(inputs)
    parts = [
        _run_once(
            model, names, {key: t[start : start + max_batch_size] for key, t in inputs.items()}
        )
        for start in range(0, rows, max_batch_size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _run_once(
    model: Model, names: Sequence[str] | None, inputs: Mapping[str, Tensor]
) -> dict[str, Array]:
    shapes = ", ".join(f"'{name}' {list(tensor.shape)}" for name, tensor in inputs.items())
    try:
        with torch.inference_mode():
            found = named_outputs(model(*(t.clone() for t in inputs.values())), names)
    except OutputError as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # the caller's code may raise anything
        lines = str(error).strip().splitlines()
        raise ExampleError(
            f"the model fails on the examples {shapes}: {type(error).__name__}: "
            f"{lines[0] if lines else ''}"
        ) from error
    arrays = {name: _array(name, tensor) for name, tensor in found.items()}
    rows = _row_count(inputs)
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != rows:
            raise CaptureError(
                f"output '{name}' is {list(array.shape)} for {rows} rows; return a row for each "
                "row of the inputs, [rows, ...]"
            )
    return arrays


def _row_count(inputs: Mapping[str, Tensor]) -> int:
    rows = {name: tensor.shape[0] if tensor.ndim else 0 for name, tensor in inputs.items()}
    if len(set(rows.values())) > 1 or not all(rows.values()):
        raise ExampleError(f"examples differ in their number of rows: {rows}; give all the same")
    return next(iter(rows.values()))


def _array(name: str, tensor: Tensor) -> Array:
    try:
        array: Array = tensor.detach().cpu().numpy()
        datatype_of(array)
    except (TensorError, TypeError, RuntimeError) as error:
        raise CaptureError(
            f"output '{name}' is {tensor.dtype}, which servers cannot answer with; return "
            "y.float(), or another type of numbers"
        ) from error
    return array


def _check_repeats(first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
    for name, one in first.items():
        if (gap := _gap(one, second[name])) is not None:
            raise CaptureError(
                f"the model gives different outputs for the same rows (output '{name}' {gap}); "
                "remove what is random, such as dropout that stays on in evaluation"
            )
        if one.dtype.kind == "f" and not np.isfinite(one).all():
            place = [int(index) for index in np.argwhere(~np.isfinite(one))[0]]
            raise CaptureError(
                f"output '{name}' is {one[tuple(place)]} at {place} for the examples; give "
                "examples whose outputs are finite numbers"
            )


def _check_rows(model: Model, inputs: Mapping[str, Tensor], together: Mapping[str, Array]) -> None:
    alone = _run_once(model, list(together), {name: tensor[:1] for name, tensor in inputs.items()})
    for name, one in alone.items():
        if (gap := _gap(together[name][:1], one)) is not None:
            raise CaptureError(
                f"the answer to a row depends on the other rows of its batch (output '{name}' "
                f"{gap}), and servers make batches of any requests; let the model compute each row "
                "by itself"
            )


def _gap(one: Array, other: Array) -> str | None:
    """Describes the difference of two results for the same rows; None for rounding at most."""
    if one.shape != other.shape:
        return f"is {list(one.shape)}, then {list(other.shape)}"
    if one.dtype.kind != "f":
        return None if np.array_equal(one, other) else "has other values"
    right, found = one.astype(np.float64), other.astype(np.float64)
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    if np.allclose(right, found, rtol=0.0, atol=ROUNDING_SHARE * largest, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        gap = np.abs(right - found)
    return f"differs by up to {gap[np.isfinite(gap)].max(initial=0.0):.3g}"


def _signature(
    examples: Examples,
    found: Mapping[str, Array],
    others: Sequence[Mapping[str, Array]],
    labels: Mapping[str, Sequence[str]],
    max_batch_size: int,
) -> Signature:
    try:
        return Signature(
            inputs=tuple(
                _spec(name, tensor.numpy(), set(examples.dynamic.get(name, {})))
                for name, tensor in examples.inputs.items()
            ),
            outputs=tuple(
                _spec(name, array, _varying_axes(array, [other[name] for other in others]))
                for name, array in found.items()
            ),
            max_batch_size=max_batch_size,
            dynamic=examples.dynamic,
            labels={name: tuple(map(str, names)) for name, names in labels.items()},
        )
    except ValueError as error:
        text = str(error).strip().splitlines()[-2:]
        raise ExampleError(f"the examples give no valid signature: {' '.join(text)}") from error


def _varying_axes(array: Array, others: Sequence[Array]) -> set[int]:
    return {
        axis
        for other in others
        for axis in range(1, array.ndim)
        if other.shape[axis] != array.shape[axis]
    }


def _spec(name: str, array: Array, varying: set[int]) -> TensorSpec:
    shape = (-1 if axis in varying | {0} else size for axis, size in enumerate(array.shape))
    return TensorSpec(name=name, datatype=datatype_of(array), shape=tuple(shape))


def _capture_files(
    flat: OutputsInOrder, examples: Examples, signature: Signature, folder: Path, script: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Writes the files; returns them and the refusals, both by kind."""
    rows = {name: _export_rows(tensor) for name, tensor in examples.inputs.items()}
    arguments = tuple(rows.values())
    files: dict[str, str] = {}
    refusals: dict[str, str] = {}
    unused: list[str] = []
    try:
        unused = _call(lambda: _export(flat, arguments, signature, folder / PROGRAM))
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
            _call(lambda: _to_torchscript(flat, arguments, folder / SCRIPT))
            files["torchscript"] = SCRIPT
        except ForkedCallError as error:
            refusals["torchscript"] = f"torch.jit: {error}"
    return files, refusals


def _call(call: Callable[[], Any]) -> Any:
    """Makes the call in a forked child, or here where that is impossible.

    Raises:
        ForkedCallError: the call raised.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        try:
            return call_in_fork(lambda: _with_one_thread(call))
        except ForkUnavailableError:
            pass
    try:
        return _quietly(call)
    except Exception as error:  # torch may raise anything for a model it cannot export
        raise ForkedCallError(innermost_line(error)) from error


def _with_one_thread(call: Callable[[], Any]) -> Any:
    torch.set_num_threads(1)  # the threads of the caller's process do not exist in the child
    return _quietly(call)


def _quietly(call: Callable[[], Any]) -> Any:
    """Makes the call without warnings of torch's exporters, which the caller may have as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def _export_rows(tensor: Tensor) -> Tensor:
    rows = tensor[:MIN_EXPORT_ROWS]
    missing = MIN_EXPORT_ROWS - len(rows)
    return torch.cat([rows, rows[:missing]]) if missing else rows


def _export(
    flat: OutputsInOrder, arguments: tuple[Tensor, ...], signature: Signature, path: Path
) -> list[str]:
    """Writes the exported program; returns the names of inputs that nothing uses."""
    batch = torch.export.Dim("batch", min=1, max=max(signature.max_batch_size, 2))
    axes: list[dict[int, Any]] = []
    for number, spec in enumerate(signature.inputs):
        varying: dict[int, Any] = {0: batch}
        for axis, (low, high) in signature.dynamic.get(spec.name, {}).items():
            varying[axis] = torch.export.Dim(f"size_{number}_{axis}", min=low, max=high)
        axes.append(varying)
    with torch.no_grad(), whole_recurrent_layers() if signature.dynamic else nullcontext():
        program = torch.export.export(flat, arguments, dynamic_shapes=(tuple(axes),))
    torch.export.save(program, path)
    used = {node.name for node in program.graph.nodes if node.users}
    inputs = zip(signature.inputs, program.graph_signature.user_inputs, strict=True)
    return [spec.name for spec, node in inputs if node not in used]


def _to_torchscript(flat: OutputsInOrder, arguments: tuple[Tensor, ...], path: Path) -> None:
    """Writes the model as TorchScript: compiled if its code allows that, else traced."""
    model = flat.network
    if isinstance(model, torch.jit.ScriptModule):
        torch.jit.save(model, str(path))
        return
    with warnings.catch_warnings(), torch.inference_mode():
        if isinstance(model, nn.Module):
            try:
                torch.jit.save(torch.jit.script(model), str(path))
                return
            except Exception:  # noqa: S110 - it is traced instead
                pass
        warnings.simplefilter("error", TracerWarning)
        traced: Any = torch.jit.trace(flat, arguments)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path))
