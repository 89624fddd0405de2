"""Runs an opened model on a few rows: what it answers gives the specs of its outputs.

In: a function that runs the model, and its inputs as the file states them. Out: `Examined`. Runs in
the isolated process that has opened the file.

Rule: files state the shapes of outputs wrongly or not at all, so they are measured: a dimension
that differs between runs of other sizes, the smallest and the largest allowed among them, varies.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flambeau.protocol.row_form import from_rows, to_rows
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import DATATYPES, Array, TensorError, datatype_of
from model_store.arrays.golden_replay import sized_inputs
from model_store.arrays.sized_rows import resized
from model_store.artifact_kinds import ArtifactKind
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.made_examples import (
    SMALL_RANGES,
    ask_for,
    made_examples,
)
from training.importing.sources.read_tensor import (
    UNNAMED,
    Dimension,
    ReadTensor,
    batch_axes,
    input_specs,
    largest_batch,
    signature_of,
    tensor_spec,
    with_batch_axes,
)
from training.importing.sources.source_options import ONLY_INPUT, SourceOptions
from training.importing.sources.varying_sizes import changed_sizes, dependent_names
from training.process.root_cause import root_cause

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Runs a batch: inputs by name to outputs by name, in order."""

MADE_UP = (
    "the example inputs were made up: the artifacts are equal on them, and real rows "
    "(--examples) prove more"
)
_SIZE_CHANGES: tuple[Callable[[int], int], ...] = (
    lambda size: size // 2,
    lambda size: size + 1,
    lambda size: size - 1,
    lambda size: size * 2,
)
"""Changes of the sizes that vary, all at once: halves suit most models."""
LARGEST_RUN = 4
"""Rows that are run here."""
LARGE_SIZE = 64
"""Size that is tried of every dimension that varies: outputs that shrink 32 times grow by then."""
_OneRun = tuple[int, Mapping[str, Array]]
"""The rows of a run, and its outputs by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The signature of a model, and inputs that it accepts."""

    signature: Signature
    examples: dict[str, Array]
    """By name, [rows, ...]."""
    made_up: bool
    notes: tuple[str, ...]

    def original(
        self,
        kind: ArtifactKind,
        file: Path,
        source: str,
        *,
        weights_file: Path | None = None,
        notes: tuple[str, ...] = (),
    ) -> Original:
        """Returns the examined FP32 model.

        Args:
            kind: its format.
            file: path of its copy in the staging folder.
            source: description for people.
            weights_file: path of the second file of kinds that have two.
            notes: facts to tell before those of the examination.
        """
        return Original(
            kind=kind,
            precision="fp32",
            file=file,
            weights_file=weights_file,
            signature=self.signature,
            examples=self.examples,
            made_up=self.made_up,
            source=source,
            notes=(*notes, *self.notes),
        )


def examine(
    where: str,
    run: Run,
    inputs: Sequence[ReadTensor],
    options: SourceOptions,
    *,
    labels: Mapping[str, Sequence[str]] | None = None,
    own_examples: Mapping[str, Array] | None = None,
) -> Examined:
    """Examines a model.

    Args:
        where: the file, for messages.
        run: runs the model.
        inputs: its inputs, in order.
        options: examples, the largest batch and the limits of dimensions.
        labels: names of the classes by output.
        own_examples: examples of the file itself, for want of the user's.

    Raises:
        SourceError: the model does not run, or has a signature that cannot be served.
    """
    if not inputs:
        raise SourceError(f"{where} takes no inputs; export it with at least one")
    inputs = _with_ranges(with_batch_axes(where, inputs, options), options)
    specs = input_specs(where, inputs)
    run = _on_rows(where, run, specs)
    given = options.examples if options.examples is not None else own_examples
    notes: tuple[str, ...] = ()
    if all(spec.batch_axis is None for spec in specs):
        notes = (f"{where} has no batch, so it runs one request at a time",)
    if given is None:
        examples, first = _accepted(where, run, inputs, options)
        notes += (MADE_UP,)
    else:
        examples = checked_examples(where, specs, given, inputs)
        first = _run(where, run, _rows_of(examples, _rows(examples)))
    given_inputs = [tensor for tensor in inputs if tensor.name in examples]
    runs = _runs(where, run, given_inputs, examples, first)

    def measured() -> Signature:
        outputs, dependent = _outputs(where, inputs, runs), dependent_names(inputs)
        return signature_of(where, inputs, outputs, options, labels, dependent)

    signature = measured()
    for sized in sized_inputs(examples, signature):
        with suppress(SourceError):  # verification runs the same, and says what fails
            runs.append((len(next(iter(sized.values()))), _run(where, run, sized)))
    signature = measured()
    return Examined(signature=signature, examples=examples, made_up=given is None, notes=notes)


def _with_ranges(inputs: Sequence[ReadTensor], options: SourceOptions) -> list[ReadTensor]:
    """Returns the inputs with the limits that the user gave of dimensions that vary."""
    found = []
    for tensor in inputs:
        told = options.dynamic.get(tensor.name, {})
        varying = dict(enumerate(tensor.dims))
        known = {a: limit for a, limit in told.items() if isinstance(varying.get(a), str)}
        found.append(replace(tensor, ranges={**tensor.ranges, **known}))
    return found


def _on_rows(where: str, run: Run, specs: Sequence[TensorSpec]) -> Run:
    """Returns a function that takes inputs as rows, and returns outputs in the model's own form.

    The first row's value counts for inputs without a batch. An error names the sizes beside the
    batch, because the user's examples have another number of rows.
    """

    def on_rows(batch: Mapping[str, Array]) -> dict[str, Array]:
        given = from_rows(batch, specs)
        try:
            return run(given)
        except SourceError:
            raise
        except Exception as error:  # runtimes raise any exception
            shapes = ", ".join(
                f"'{spec.name}' {given[spec.name].dtype} "
                f"{spec.model_copy(update={'shape': given[spec.name].shape}).shape_words()}"
                for spec in specs
                if spec.name in given
            )
            raise SourceError(f"{where} does not run on {shapes}: {root_cause(error)}") from None

    return on_rows


def model_inputs(
    examples: Mapping[str, Array], specs: Sequence[TensorSpec], rows: int
) -> dict[str, Array]:
    """Returns the first rows of examples in the model's own form, repeated if there are fewer."""
    return from_rows(_rows_of(examples, rows), specs)


def checked_examples(
    where: str,
    specs: Sequence[TensorSpec],
    given: Mapping[str, Array],
    inputs: Sequence[ReadTensor],
) -> dict[str, Array]:
    """Returns the examples in the order of the inputs, in row-major order.

    An array of another precision than its floating point input is converted.

    Raises:
        SourceError: a name, datatype or shape does not fit, or there are no rows.
    """
    known = [spec.name for spec in specs]
    if list(given) == [ONLY_INPUT] and len(known) == 1:
        given = {known[0]: given[ONLY_INPUT]}
    for name in given:
        if name not in known:
            raise SourceError(f"the examples name '{name}'{nearest_name(name, known)}")
    found: dict[str, Array] = {}
    for spec, tensor in zip(specs, inputs, strict=True):
        if spec.name not in given:
            if spec.optional:
                continue
            raise SourceError(ask_for(where, inputs, f"the examples lack '{spec.name}'"))
        array = _as(spec.datatype, np.asarray(given[spec.name]))
        own = spec.batch_axis != 0 and _is_own_form(array, spec, given, specs)
        if datatype_of(array) != spec.datatype or not (own or spec.in_rows().fits(array.shape)):
            raise SourceError(
                f"the example '{spec.name}' is {array.dtype} {list(array.shape)}, and {where} "
                f"takes {tensor.text()}"
            )
        if own:
            rows = _rows_given(given, specs)
            array = to_rows({spec.name: array}, [spec], rows)[spec.name]
        found[spec.name] = np.ascontiguousarray(array)
    counts = {name: len(array) for name, array in found.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        raise SourceError(f"examples differ in their number of rows: {counts}; give all the same")
    return found


def _rows_given(given: Mapping[str, Array], specs: Sequence[TensorSpec]) -> int:
    """Returns the rows of the examples: those along a batch axis, if possible the first dimension.

    An array that does not have its input's own form has its rows in the first dimension.
    """
    axes = [(s.batch_axis, s) for s in specs if s.batch_axis is not None and s.name in given]
    for axis, spec in sorted(axes, key=lambda one: one[0]):
        array = np.atleast_1d(given[spec.name])
        return int(array.shape[axis if spec.fits(array.shape) else 0])
    return 1


def _is_own_form(
    array: Array, spec: TensorSpec, given: Mapping[str, Array], specs: Sequence[TensorSpec]
) -> bool:
    """Returns True for an example in the model's form, where its rows would be another array."""
    if not spec.fits(array.shape):
        return False
    is_rows = spec.in_rows().fits(array.shape) and len(array) == _rows_given(given, specs)
    return not is_rows


def _as(datatype: str, array: Array) -> Array:
    if datatype in ("FP16", "FP32", "FP64") and array.dtype.kind == "f":
        return array.astype(DATATYPES[datatype])
    return array


def _accepted(
    where: str, run: Run, inputs: Sequence[ReadTensor], options: SourceOptions
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns made-up examples that the model accepts, and its outputs for the first rows."""
    most = largest_batch(where, inputs, options)
    failure = SourceError("no examples were tried")
    for below in SMALL_RANGES:
        examples = made_examples(where, inputs, most_rows=most, integers_below=below)
        try:
            return examples, _run(where, run, _rows_of(examples, _rows(examples)))
        except SourceError as error:
            failure = error
    told = ask_for(where, inputs, f"made-up ones do not run: {failure}")
    raise SourceError(f"{told}{_fix_sizes(inputs, examples)}")


def _fix_sizes(inputs: Sequence[ReadTensor], examples: Mapping[str, Array]) -> str:
    """Returns the advice for a model that takes one size only; empty if no dimension varies."""
    for tensor, spec in zip(inputs, input_specs("", inputs), strict=True):
        for place, name in enumerate(tensor.dims):
            if isinstance(name, str) and place != spec.batch_axis:
                size = examples[tensor.name].shape[spec.row_axis(place)]
                return (
                    f"; the size tried along dimension {place} of '{tensor.name}' is {size}: if "
                    "the model takes one size only, such as the length that it was exported "
                    f"with, say it: --dynamic '{{{tensor.name}: {{{place}: [16, 16]}}}}'"
                )
    return ""


def _rows(examples: Mapping[str, Array]) -> int:
    return min(len(next(iter(examples.values()))), LARGEST_RUN)


def _rows_of(examples: Mapping[str, Array], rows: int) -> dict[str, Array]:
    """Returns the first rows, repeated if there are fewer."""
    return {
        name: np.ascontiguousarray(array[np.arange(rows) % len(array)])
        for name, array in examples.items()
    }


def _run(where: str, run: Run, inputs: Mapping[str, Array]) -> dict[str, Array]:
    outputs = run(inputs)
    if not outputs:
        raise SourceError(f"{where} has no outputs; export it with at least one")
    return {name: np.asarray(array) for name, array in outputs.items()}


def _runs(
    where: str,
    run: Run,
    inputs: Sequence[ReadTensor],
    examples: Mapping[str, Array],
    first: Mapping[str, Array],
) -> list[_OneRun]:
    """Returns the first run, and runs of other numbers of rows and of other sizes."""
    rows = _rows(examples)
    runs = [(rows, first)]
    if _has_batch(inputs):
        fewer = rows - 1 if rows > 1 else 2
        runs.append((fewer, _run(where, run, _rows_of(examples, fewer))))
    if (found := _run_resized(where, run, inputs, _rows_of(examples, rows))) is not None:
        runs.append((rows, found))
        larger = _resized(inputs, _rows_of(examples, 1), lambda size: max(size * 2, LARGE_SIZE))
        with suppress(SourceError):  # one other size is enough for most outputs
            runs += [] if larger is None else [(1, _run(where, run, larger))]
    return runs


def _has_batch(inputs: Sequence[ReadTensor]) -> bool:
    return any(axis is not None for axis in batch_axes(inputs).values())


def _outputs(where: str, inputs: Sequence[ReadTensor], runs: Sequence[_OneRun]) -> list[TensorSpec]:
    """Returns the specs of the outputs, in order, by comparing runs with the first."""
    return [_output(where, name, _has_batch(inputs), runs) for name in runs[0][1]]


def _output(where: str, name: str, has_batch: bool, runs: Sequence[_OneRun]) -> TensorSpec:
    array = runs[0][1][name]
    try:
        datatype = datatype_of(array)
    except TensorError as error:
        raise SourceError(f"output '{name}' of {where}: {error}") from error
    sizes = [(rows, found[name].shape) for rows, found in runs]
    if any(len(shape) != array.ndim for _, shape in sizes):
        raise SourceError(
            f"output '{name}' of {where} has {array.ndim} dimensions, and another number for other "
            "inputs; return one with a fixed number of dimensions"
        )
    follows = [a for a in range(array.ndim) if all(s[a] == n for n, s in sizes)]
    batch = follows[0] if follows and has_batch else None
    dims: list[Dimension] = [
        UNNAMED if axis == batch or any(shape[axis] != size for _, shape in sizes) else size
        for axis, size in enumerate(array.shape)
    ]
    tensor = ReadTensor(name=name, datatype=datatype, dims=tuple(dims))
    return tensor_spec(where, "output", tensor, batch)


def _run_resized(
    where: str, run: Run, inputs: Sequence[ReadTensor], examples: Mapping[str, Array]
) -> dict[str, Array] | None:
    """Runs the examples with other sizes of the dimensions that vary; None if none does.

    A model may take multiples of a size only, or sizes that depend on each other, so several
    changes are tried. The error is that of the first.
    """
    failure, failed = None, examples
    for change in _SIZE_CHANGES:
        resized = _resized(inputs, examples, change)
        if resized is not None:
            try:
                return _run(where, run, resized)
            except SourceError as error:
                if failure is None:
                    failure, failed = error, resized
    if failure is not None:
        raise SourceError(f"{failure}{_fix_sizes(inputs, failed)}")
    return None


def _resized(
    inputs: Sequence[ReadTensor], examples: Mapping[str, Array], change: Callable[[int], int]
) -> dict[str, Array] | None:
    """Returns the examples with other sizes of the dimensions that vary; None if none does."""
    specs = {spec.name: spec for spec in input_specs("", inputs)}
    axes = {
        (tensor.name, place): 0
        if place == specs[tensor.name].batch_axis
        else specs[tensor.name].row_axis(place)
        for tensor in inputs
        for place, name in enumerate(tensor.dims)
        if isinstance(name, str)
    }
    sizes = {place: examples[place[0]].shape[axis] for place, axis in axes.items()}
    changed = changed_sizes(inputs, sizes, change)
    if changed is None:
        return None
    found = dict(examples)
    for (name, place), size in changed.items():
        axis = axes[name, place]
        found[name] = resized(found[name], axis, size)
    return found
