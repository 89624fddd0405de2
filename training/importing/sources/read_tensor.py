"""Inputs and outputs as a foreign file states them, and the signature that follows from them.

Rules: a named or unknown dimension varies; an input's first dimension that varies is the batch.
Another input whose first dimension is fixed has its batch where it names the same dimension, or in
its only unnamed one. The options may say the batch axis of an input; a name in it is then that of
the batch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from flambeau.protocol.signature import Limits, Signature, SizeLimit, TensorSpec, VaryingAxes
from flambeau.protocol.strict import explain, nearest_name
from training.errors import SourceError
from training.importing.sources.source_options import DEFAULT_MAX_BATCH_SIZE, SourceOptions

Dimension = int | str
"""A fixed size, or the name of one that varies; `UNNAMED` if the file gives none."""
UNNAMED = ""
BATCH = "batch"
"""Name of the batch dimension where examples are the only source of shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTensor:
    """One input or output."""

    name: str
    datatype: str
    dims: tuple[Dimension, ...]
    """All dimensions, the batch included."""
    ranges: dict[int, SizeLimit] = field(default_factory=dict)
    """Smallest and largest size by axis, where the file limits them; None for no largest."""
    batch_axis: int | None = None
    """The dimension of the batch if `is_told`; None for none."""
    is_told: bool = False
    """True if the options say the batch axis."""
    optional: bool = False
    """True for an input that has a default in the file."""

    def text(self) -> str:
        """Returns the tensor in words: `'image' FP32 [batch, 3, 224]`."""
        dims = ", ".join(str(d) if d != UNNAMED else "?" for d in self.dims)
        return f"'{self.name}' {self.datatype} [{dims}]"


def with_batch_axes(
    where: str, inputs: Sequence[ReadTensor], options: SourceOptions
) -> list[ReadTensor]:
    """Returns the inputs with the batch axes that the options say.

    Args:
        where: the file, for messages.
        inputs: its inputs, in order.
        options: the batch axes.

    Raises:
        SourceError: they name no input, or a dimension that it does not have or that is fixed.
    """
    known = {tensor.name: tensor for tensor in inputs}
    for name, axis in options.batch_axes.items():
        if name not in known:
            raise SourceError(f"--batch-axis names input '{name}'{nearest_name(name, known)}")
        size = None if axis is None else dict(enumerate(known[name].dims)).get(axis)
        if axis is not None and not isinstance(size, str):
            reason = "it has no such dimension" if size is None else f"its size is always {size}"
            raise SourceError(
                f"--batch-axis says {name}={axis}, and {where} takes {known[name].text()}: "
                f"{reason}; name a dimension that varies, or none"
            )
        known[name] = replace(known[name], batch_axis=axis, is_told=True)
    return list(known.values())


def batch_axes(inputs: Sequence[ReadTensor]) -> dict[str, int | None]:
    """Returns the batch axis of each input; None for one without."""
    told = [t.dims[t.batch_axis] for t in inputs if t.is_told and t.batch_axis is not None]
    firsts = [tensor.dims[0] for tensor in inputs if tensor.dims and not tensor.is_told]
    batch = next((size for size in (*told, *firsts) if isinstance(size, str)), None)
    is_named = bool(told) and batch != UNNAMED
    found: dict[str, int | None] = {}
    for tensor in inputs:
        if tensor.is_told:
            found[tensor.name] = tensor.batch_axis
        elif (
            tensor.dims
            and isinstance(tensor.dims[0], str)
            and not (is_named and batch in tensor.dims)
        ):
            found[tensor.name] = 0
        else:
            varying = [a for a, d in enumerate(tensor.dims) if isinstance(d, str) and d == batch]
            is_sure = len(varying) == 1 or (varying and batch != UNNAMED)
            found[tensor.name] = varying[0] if is_sure else None
    return found


def input_specs(where: str, inputs: Sequence[ReadTensor]) -> tuple[TensorSpec, ...]:
    """Returns the specs of the inputs.

    Args:
        where: the file, for messages.
        inputs: its inputs, in order.

    Raises:
        SourceError: an input has an invalid name or shape.
    """
    axes = batch_axes(inputs)
    return tuple(tensor_spec(where, "input", tensor, axes[tensor.name]) for tensor in inputs)


def tensor_spec(where: str, what: str, tensor: ReadTensor, batch_axis: int | None) -> TensorSpec:
    """Returns the spec of one tensor.

    Args:
        where: the file, for messages.
        what: `input` or `output`.
        tensor: the tensor.
        batch_axis: the dimension of the batch; None if it has none.

    Raises:
        SourceError: its name or shape is not valid.
    """
    shape = tuple(-1 if isinstance(size, str) else size for size in tensor.dims)
    try:
        return TensorSpec(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=shape,
            batch_axis=batch_axis,
            optional=tensor.optional,
        )
    except ValidationError as error:
        raise SourceError(f"{what} of {where}: {explain(error, TensorSpec)}") from error


def largest_batch(where: str, inputs: Sequence[ReadTensor], options: SourceOptions) -> int:
    """Returns the largest batch in rows; 1 for a model without a batch.

    Raises:
        SourceError: the options ask for more than the file allows.
    """
    axes = batch_axes(inputs)
    if all(axis is None for axis in axes.values()):
        return 1
    limits = [
        most
        for tensor in inputs
        if (axis := axes[tensor.name]) is not None
        and (most := tensor.ranges.get(axis, (1, None))[1]) is not None
    ]
    most = options.max_batch_size or min([DEFAULT_MAX_BATCH_SIZE, *limits])
    if any(most > limit for limit in limits):
        raise SourceError(
            f"--max-batch-size is {most}, and {where} takes at most {min(limits)} rows; give less, "
            "or export it for more"
        )
    return most


def signature_of(
    where: str,
    inputs: Sequence[ReadTensor],
    outputs: Sequence[TensorSpec],
    options: SourceOptions,
    labels: Mapping[str, Sequence[str]] | None = None,
    dependent: Collection[str] = (),
) -> Signature:
    """Returns the signature of a model.

    Args:
        where: the file, for messages.
        inputs: its inputs, in order.
        outputs: specs of its outputs, in order.
        options: largest batch, and limits of dimensions.
        labels: names of the classes by output.
        dependent: names of dimensions that do not vary by themselves.

    Raises:
        SourceError: the options or labels do not fit the model.
    """
    known = {tensor.name: tensor for tensor in inputs}
    dynamic: VaryingAxes = {}
    limits: Limits = {}
    for name in options.dynamic:
        if name not in known:
            raise SourceError(f"dynamic names input '{name}'{nearest_name(name, known)}")
    axes = batch_axes(inputs)
    for name, tensor in known.items():
        told = options.dynamic.get(name, {})
        for axis, (low, high) in {**tensor.ranges, **told}.items():
            if axis == axes[name] and axis not in told:
                continue
            depends = dict(enumerate(tensor.dims)).get(axis) in dependent
            if high is None or depends or low == high:
                limits.setdefault(name, {})[axis] = (low, high)
            else:
                dynamic.setdefault(name, {})[axis] = (low, high)
    try:
        return Signature(
            inputs=input_specs(where, inputs),
            outputs=tuple(outputs),
            max_batch_size=largest_batch(where, inputs, options),
            dynamic=dynamic,
            limits=limits,
            labels={name: tuple(names) for name, names in (labels or {}).items()},
        )
    except ValidationError as error:
        raise SourceError(f"{where}: {explain(error, Signature)}") from error
