"""The signature of a model: names, datatypes and shapes of its tensors; checks requests against it.

Pure rules. Shapes include the batch dimension, which is -1 and the first unless `batch_axis` names
another; a tensor may have none. Any other -1 marks a dimension that varies between requests, within
the limits of `dynamic` if that names it. Requests of different lengths share a batch only if the
signature has a `Padding`.

Tensors without a batch axis:
- an input is shared: requests share a batch only if they give it the same value;
- an output belongs to the batch: each of its requests gets the whole of it;
- a model without any batch axis runs one request at a time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from flambeau.protocol.datatypes import DATATYPE_NAMES
from flambeau.protocol.sequence_spec import Sequences, check_sequences
from flambeau.protocol.strict import StrictModel, nearest_name
from flambeau.protocol.tensor_spec import MAX_RANK, TensorName, shape_text
from flambeau.protocol.tensor_spec import SignatureError as SignatureError
from flambeau.protocol.tensor_spec import TensorSpec as TensorSpec

Axis = Annotated[int, Field(ge=1)]
"""Index of a dimension of a full shape; 0 is the batch."""
VaryingAxis = Annotated[int, Field(ge=0, lt=MAX_RANK)]
"""Index of a dimension of a full shape, which is not the batch."""


MAX_SIZE = 2**63 - 1
"""Limit on a size: tensors' sizes are 64-bit integers in every protocol."""


def _smallest_first(value: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= value[0] < value[1] <= MAX_SIZE:
        raise ValueError(f"give the smallest size, from 1 up, and a larger one, {MAX_SIZE} at most")
    return value


SizeRange = Annotated[tuple[int, int], AfterValidator(_smallest_first)]
"""The smallest and the largest size of an axis, both included."""


def _a_limit(value: tuple[int, int | None]) -> tuple[int, int | None]:
    low, high = value
    if not 1 <= low <= MAX_SIZE or (high is not None and not low <= high <= MAX_SIZE):
        raise ValueError(
            "give the smallest size, from 1 up, and the largest, or null for none, "
            f"{MAX_SIZE} at most"
        )
    return value


SizeLimit = Annotated[tuple[int, int | None], AfterValidator(_a_limit)]
"""The smallest and the largest size of an axis, both included; None for no largest."""
DynamicAxes = dict[TensorName, dict[Axis, SizeRange]]
"""Allowed sizes by input and axis, such as `{image: {2: [8, 32], 3: [8, 32]}}`."""
VaryingAxes = dict[TensorName, dict[VaryingAxis, SizeRange]]
"""`DynamicAxes` of inputs whose batch may be any axis, or none."""

BoundedAxes = dict[
    TensorName, dict[VaryingAxis, Annotated[tuple[int, int], AfterValidator(_a_limit)]]
]
"""Smallest and largest size by input and axis; equal ones fix it."""

Limits = dict[TensorName, dict[VaryingAxis, SizeLimit]]
"""Limits by input and axis."""

Labels = dict[TensorName, tuple[str, ...]]
"""Class names by output, in order."""

LENGTH_DATATYPES = ("INT32", "INT64")
"""Datatypes that `Padding.lengths` may have."""
NOT_PADDED_DATATYPES = ("BF16", "BYTES")
"""Datatypes without a NumPy number to use as padding value."""


class Padding(StrictModel):
    """Padding of requests of different lengths to one batch.

    Requests of one bucket run together, each padded to the longest of the batch. Unchanged answers
    under padding are a property of the model, which verification tests.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    inputs: dict[TensorName, Axis] = Field(min_length=1)
    """Length axis of each input. Name every input whose size depends on the request's length,
    except the mask; all inputs of one request have the same length."""
    outputs: dict[TensorName, Axis] = Field(default={})
    """The axis of each output that is cut back to the request's own length. Name an output that
    has one value per position, such as a label per token."""
    buckets: tuple[int, ...] = Field(min_length=1)
    """Lengths, ascending. A request uses the smallest bucket that fits it; one longer than all
    buckets is refused. Add buckets if batches are mostly padding; remove some if batches are
    small."""
    values: dict[TensorName, float] = Field(default={})
    """The padding value of each input; default 0. Set it if the model has its own padding token."""
    mask: TensorName | None = None
    """An input [rows, length] that is 1, or True, for real elements and 0 for padding. If a request
    omits it, the server generates it. Name it if the model takes a mask."""
    lengths: TensorName | None = None
    """An integer input [rows], the number of real elements. If a request omits it, the server
    generates it. Name it if the model takes lengths rather than a mask."""
    static: bool = False
    """True pads a batch to its bucket instead of its longest request. Set it for engines with
    fixed shapes, such as CUDA graphs."""

    @field_validator("buckets")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if value[0] < 1 or list(value) != sorted(set(value)):
            raise ValueError("give lengths from 1 up, each larger than the one before")
        return value

    @model_validator(mode="after")
    def _each_name_once(self) -> "Padding":
        for name, what in ((self.mask, "mask"), (self.lengths, "lengths")):
            if name in self.inputs:
                raise ValueError(f"'{name}' is both in inputs and the {what}; keep one of the two")
        if self.mask is not None and self.mask == self.lengths:
            raise ValueError(f"'{self.mask}' is both mask and lengths; keep one of the two")
        for name in self.values:
            if name not in self.inputs:
                raise ValueError(
                    f"values names '{name}', which is not padded{nearest_name(name, self.inputs)}"
                )
        return self

    def bucket_of(self, length: int) -> int:
        """Returns the smallest bucket that fits a length.

        Raises:
            SignatureError: the length exceeds all buckets, or is 0.
        """
        if length < 1:
            raise SignatureError(f"the inputs have length {length}; give at least 1")
        for bucket in self.buckets:
            if length <= bucket:
                return bucket
        raise SignatureError(
            f"the inputs have length {length}; at most {self.buckets[-1]} fit, so shorten them"
        )

    def axis_of(self, name: str) -> int | None:
        """Returns the length axis of an input or of the mask; None if it has none."""
        return 1 if name == self.mask else self.inputs.get(name)

    def is_optional(self, name: str) -> bool:
        """Returns True if a request may omit the input."""
        return name in (self.mask, self.lengths)


BEYOND_TENSORS = ("dynamic", "limits", "labels", "padding", "sequence")
"""Fields of a signature that model metadata reports as properties of the model, each as JSON."""
TENSOR_FIELDS = ("batch_axis", "optional")
"""Fields of its tensors that model metadata reports in the property `tensors`, as JSON: by
`inputs` and `outputs`, by name, those that differ from the default."""


class Signature(StrictModel):
    """All inputs and outputs of a model, and its largest batch in rows."""

    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    max_batch_size: int = Field(ge=1, le=65_536)
    padding: Padding | None = None
    """Padding for requests of different lengths; None if only requests of equal shapes batch."""
    # Omitted from JSON if empty, so that older manifests serialize as before.
    dynamic: VaryingAxes = Field(default={}, exclude_if=lambda axes: not axes)
    """Axes whose size varies within limits, such as an image's height. Requests of equal size share
    a batch. Length axes of `padding` are not listed here."""
    limits: Limits = Field(default={}, exclude_if=lambda limits: not limits)
    """Limits of axes that vary with others, such as the length of tokens and of their mask, or that
    have no largest size. Verification tries the sizes of `dynamic`, and not these."""
    labels: Labels = Field(default={}, exclude_if=lambda labels: not labels)
    """Names of the classes along the last axis of an output."""
    sequence: Sequences | None = Field(default=None, exclude_if=lambda given: given is None)
    """Sequences of a model with state; None if requests are independent of each other."""

    @field_validator("inputs", "outputs")
    @classmethod
    def _unique_names(cls, value: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        names = [spec.name for spec in value]
        if len(set(names)) != len(names):
            raise ValueError(f"a tensor name occurs twice in {names}")
        return value

    @model_validator(mode="after")
    def _batch_axes_fit(self) -> "Signature":
        if not self.is_plain:
            _check_batch_axes(self)
        return self

    @model_validator(mode="after")
    def _padding_fits(self) -> "Signature":
        if self.padding is not None:
            if not self.is_plain:
                raise ValueError(
                    "padding needs tensors whose batch is the first dimension and inputs that "
                    "every request has; leave out batch_axis and optional, or padding"
                )
            inputs = {spec.name: spec for spec in self.inputs}
            outputs = {spec.name: spec for spec in self.outputs}
            _check_axes(self.padding.inputs, inputs, "input")
            _check_axes(self.padding.outputs, outputs, "output")
            _check_values(self.padding, inputs)
            _check_optional(self.padding, inputs)
        return self

    @model_validator(mode="after")
    def _dynamic_fits(self) -> "Signature":
        inputs = {spec.name: spec for spec in self.inputs}
        for what, limits in (("dynamic", self.dynamic), ("limits", self.limits)):
            for name, axes in limits.items():
                _check_varying(what, name, axes, inputs, self.padding)
        return self

    @model_validator(mode="after")
    def _labels_fit(self) -> "Signature":
        outputs = {spec.name: spec for spec in self.outputs}
        for name, labels in self.labels.items():
            problem = f"labels names output '{name}', which the model does not have"
            shape = _spec_of(name, outputs, problem).shape
            classes = shape[-1] if shape else -1
            if len(labels) != classes:
                raise ValueError(
                    f"labels has {len(labels)} names for output '{name}', whose last axis has "
                    f"{classes if classes >= 0 else 'no fixed'} size; name each of its classes"
                )
        return self

    @model_validator(mode="after")
    def _sequence_fits(self) -> "Signature":
        if self.sequence is not None:
            check_sequences(self.sequence, self.inputs, self.outputs, self.has_batch)
        return self

    @property
    def is_plain(self) -> bool:
        """True if every tensor's batch is its first dimension, and no input is optional."""
        return all(s.batch_axis == 0 and not s.optional for s in (*self.inputs, *self.outputs))

    @property
    def has_batch(self) -> bool:
        """True if requests can share a batch; False for a model that runs one at a time."""
        return any(spec.batch_axis is not None for spec in self.inputs)

    def in_rows(self) -> "Signature":
        """Returns the signature of its rows: every tensor [rows, ...]; see `protocol.row_form`."""
        if self.is_plain:
            return self
        specs = {spec.name: spec for spec in self.inputs}
        moved = {
            what: {
                name: {specs[name].row_axis(axis): sizes for axis, sizes in axes.items()}
                for name, axes in limits.items()
            }
            for what, limits in (("dynamic", self.dynamic), ("limits", self.limits))
        }
        return self.model_copy(
            update={
                "inputs": tuple(spec.in_rows() for spec in self.inputs),
                "outputs": tuple(spec.in_rows() for spec in self.outputs),
                **moved,
            }
        )

    def check_inputs(self, given: Mapping[str, tuple[str, Sequence[int]]]) -> int:
        """Checks a request's tensors, each given as (datatype, full shape).

        Optional inputs may be missing. With a `padding`, the mask and the lengths may be missing,
        too, and the length must fit a bucket.

        Returns:
            The number of rows, which all inputs with a batch share; 1 for a model without.

        Raises:
            SignatureError: a name, datatype, shape, size, batch size or length does not match.
        """
        known = {spec.name for spec in self.inputs}
        for name in given:
            if name not in known:
                raise SignatureError(f"unknown input '{name}'{nearest_name(name, known)}")
        for spec in self.inputs:
            if spec.name not in given:
                if spec.optional or (self.padding and self.padding.is_optional(spec.name)):
                    continue
                raise SignatureError(f"input '{spec.name}' is missing")
            datatype, shape = given[spec.name]
            if datatype != spec.datatype:
                raise SignatureError(
                    f"input '{spec.name}' has datatype {datatype}; expected {spec.datatype}"
                )
            if not spec.fits(shape):
                raise SignatureError(
                    f"input '{spec.name}' has shape {shape_text(shape)}; expected "
                    f"{spec.shape_words()}"
                )
            _check_sizes(spec.name, shape, self.dynamic.get(spec.name, {}))
            if self.limits:
                _check_sizes(spec.name, shape, self.limits.get(spec.name, {}))
        shapes = {name: shape for name, (_, shape) in given.items()}
        rows = self._rows(shapes)
        length = self.length_of(shapes)
        if self.padding is not None and length is not None:
            self.padding.bucket_of(length)
        return rows

    def length_of(self, shapes: Mapping[str, Sequence[int]]) -> int | None:
        """Returns the common length of padded inputs, or None for a model without `padding`.

        Args:
            shapes: full shapes by name of the inputs present, each of its spec's rank.

        Raises:
            SignatureError: the lengths differ.
        """
        if self.padding is None:
            return None
        axes = {name: self.padding.axis_of(name) for name in shapes}
        lengths = {name: shapes[name][axis] for name, axis in axes.items() if axis is not None}
        if len(set(lengths.values())) > 1:
            raise SignatureError(f"inputs differ in length: {lengths}; give all the same")
        return next(iter(lengths.values()), None)

    def check_outputs(self, names: Sequence[str]) -> None:
        """Checks the outputs that a request asks for.

        Raises:
            SignatureError: an output that the model does not have, or one requested twice.
        """
        known = {spec.name for spec in self.outputs}
        for name in names:
            if name not in known:
                raise SignatureError(f"unknown output '{name}'{nearest_name(name, known)}")
        if len(set(names)) != len(names):
            raise SignatureError(f"an output is asked for twice in {list(names)}")

    def _rows(self, shapes: Mapping[str, Sequence[int]]) -> int:
        if not self.has_batch:
            return 1
        axes = {spec.name: spec.batch_axis for spec in self.inputs}
        rows = {n: shape[axis] for n, shape in shapes.items() if (axis := axes[n]) is not None}
        if len(set(rows.values())) > 1:
            raise SignatureError(f"inputs differ in batch size: {rows}; give all the same")
        (count,) = set(rows.values())
        if count < 1:
            raise SignatureError("the batch has 0 rows; give at least 1")
        if count > self.max_batch_size:
            most = self.max_batch_size
            fit = f"at most {most} fit, so split it" if most > 1 else "send one row a request"
            raise SignatureError(f"the batch has {count} rows; {fit}")
        return count


def _check_batch_axes(signature: Signature) -> None:
    """Checks batch axes and optional inputs against each other."""
    for spec in signature.outputs:
        if spec.optional:
            raise ValueError(f"output '{spec.name}' is optional; only inputs can be")
    if all(spec.optional for spec in signature.inputs):
        raise ValueError("every input is optional, so a request could be empty; require one")
    if signature.has_batch:
        if all(spec.optional for spec in signature.inputs if spec.batch_axis is not None):
            raise ValueError(
                "every input with a batch is optional, so the number of rows would be unknown; "
                "require one of them"
            )
        return
    if signature.max_batch_size != 1:
        raise ValueError(
            f"max_batch_size is {signature.max_batch_size}, and no input has a batch axis, so "
            "requests run one at a time; write 1"
        )
    for spec in signature.outputs:
        if spec.batch_axis is not None:
            raise ValueError(
                f"output '{spec.name}' has a batch axis and no input has one; write "
                "batch_axis: null"
            )


def _check_axes(axes: Mapping[str, int], specs: Mapping[str, TensorSpec], what: str) -> None:
    for name, axis in axes.items():
        spec = _spec_of(
            name, specs, f"padding names {what} '{name}', which the model does not have"
        )
        if axis >= len(spec.shape) or spec.shape[axis] != -1:
            raise ValueError(
                f"padding says axis {axis} of {what} '{name}' holds the length, and its shape is "
                f"{shape_text(spec.shape)}; name an axis that is -1"
            )


def _check_varying(
    what: str,
    name: str,
    axes: Iterable[int],
    inputs: Mapping[str, TensorSpec],
    padding: Padding | None,
) -> None:
    spec = _spec_of(name, inputs, f"{what} names input '{name}', which the model does not have")
    for axis in axes:
        if axis == spec.batch_axis:
            raise ValueError(
                f"{what} says axis {axis} of input '{name}' varies, and it is the batch, which "
                "max_batch_size limits; leave it out"
            )
        if axis >= len(spec.shape) or spec.shape[axis] != -1:
            raise ValueError(
                f"{what} says axis {axis} of input '{name}' varies, and its shape is "
                f"{shape_text(spec.shape)}; name an axis that is -1"
            )
        if padding is not None and axis == padding.axis_of(name):
            raise ValueError(
                f"axis {axis} of input '{name}' is both in {what} and in padding; keep it in "
                "padding, whose buckets limit it"
            )


def _check_sizes(
    name: str, shape: Sequence[int], axes: Mapping[int, tuple[int, int | None]]
) -> None:
    for axis, (low, high) in axes.items():
        if shape[axis] < low or (high is not None and shape[axis] > high):
            allowed = f"{low} or more" if high is None else f"{low} to {high}"
            allowed = str(low) if low == high else allowed
            raise SignatureError(
                f"input '{name}' has shape {shape_text(shape)}, and size {shape[axis]} along axis "
                f"{axis}; give {allowed}"
            )


def _check_values(padding: Padding, inputs: Mapping[str, TensorSpec]) -> None:
    # NumPy takes 0.1 s to import, and listing a store does not need it.
    import numpy as np

    from flambeau.protocol.tensors import DATATYPES

    for name in padding.inputs:
        datatype = inputs[name].datatype
        if datatype in NOT_PADDED_DATATYPES:
            raise ValueError(f"input '{name}' is {datatype}, which cannot be padded")
        value = padding.values.get(name, 0)
        dtype: Any = DATATYPES[datatype]
        if dtype.kind == "f":
            fits = abs(value) <= float(np.finfo(dtype).max)
        else:
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            is_whole = math.isfinite(value) and value == int(value)
            fits = is_whole and low <= int(value) <= high
        if not fits:
            raise ValueError(f"input '{name}' is {datatype} and cannot be padded with {value:g}")


def _check_optional(padding: Padding, inputs: Mapping[str, TensorSpec]) -> None:
    """Checks that the mask is [rows, length] of numbers and the lengths [rows] of integers."""
    numbers = [datatype for datatype in DATATYPE_NAMES if datatype not in NOT_PADDED_DATATYPES]
    _check_kind(padding.mask, inputs, "mask", (-1, -1), numbers)
    _check_kind(padding.lengths, inputs, "lengths", (-1,), LENGTH_DATATYPES)


def _check_kind(
    name: str | None,
    inputs: Mapping[str, TensorSpec],
    what: str,
    shape: tuple[int, ...],
    datatypes: Iterable[str],
) -> None:
    if name is None:
        return
    spec = _spec_of(name, inputs, f"padding.{what} is '{name}', which is no input")
    if spec.shape != shape:
        raise ValueError(
            f"padding.{what} is '{name}' of shape {shape_text(spec.shape)}; it must be "
            f"{shape_text(shape)}"
        )
    if spec.datatype not in datatypes:
        raise ValueError(
            f"padding.{what} is '{name}' of datatype {spec.datatype}; use one of "
            f"{', '.join(datatypes)}"
        )


def _spec_of(name: str, specs: Mapping[str, TensorSpec], problem: str) -> TensorSpec:
    if name not in specs:
        raise ValueError(f"{problem}{nearest_name(name, specs)}")
    return specs[name]
