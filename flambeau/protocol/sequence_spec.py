"""Sequences of a model: the tensors that the server fills in and keeps, and limits.

A step of a sequence is a request of one row. The server gives the model, beside the caller's
inputs: state tensors, which are outputs of the step before; and controls, which say what kind of
step it is. Callers neither send nor get these tensors.

Source: the sequence batcher of Triton Inference Server, whose terms these are.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flambeau.protocol.strict import StrictModel, nearest_name
from flambeau.protocol.tensor_spec import TensorName, TensorSpec, shape_text

CONTROLS = ("start", "end", "ready")
CONTROL_DATATYPES = ("BOOL", "INT32", "FP32")
ID_DATATYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
STATE_DATATYPES = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
    "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}  # fmt: skip
"""Bytes of an element, by datatype; text has no fixed size."""
MAX_STATE_BYTES = 64 * 2**20
"""Most bytes of the state of one sequence."""
MAX_INITIAL = 65_536
"""Most numbers of an initial state that is not one number."""
MAX_OPEN = 65_536
MAX_IDLE_S = 3600.0
MAX_LIFETIME_S = 30 * 86_400.0

Number = bool | int | float


def _named(field: str) -> BeforeValidator:
    """Lets a name stand for a record with nothing else in it."""
    return BeforeValidator(lambda given: {field: given} if isinstance(given, str) else given)


class State(StrictModel):
    """A state: what it was before a step is an input, and what it is after it an output."""

    output: TensorName
    """The output that is the input of the next step."""
    initial: Number | Annotated[tuple[Number, ...], Field(max_length=MAX_INITIAL)] = 0
    """Value before the first step: one number for all elements, or each of a row's, in row-major
    order."""


class Control(StrictModel):
    """An input that is one of two numbers."""

    input: TensorName
    false: Number = 0
    true: Number = 1


ControlInput = Annotated[Control, _named("input")]


class Sequences(StrictModel):
    """Sequences of a model."""

    states: dict[TensorName, Annotated[State, _named("output")]] = Field(default={})
    """States by input: the name of the output, or that and the initial value. Without any, the
    model keeps its state itself, and a sequence stays with one instance."""
    start: ControlInput | None = None
    """Input that is true for the first step of a sequence."""
    end: ControlInput | None = None
    """Input that is true for the last step of a sequence."""
    ready: ControlInput | None = None
    """Input that is true for rows of steps, and false for rows that fill up a batch."""
    id: TensorName | None = None
    """Input that is the sequence's id: a number, or BYTES."""
    strategy: Literal["oldest", "direct"] = "oldest"
    """`oldest` batches whatever steps wait. `direct` gives a sequence a row of an instance's batch
    for as long as it lasts: for models that keep state by row."""
    max_idle_s: float = Field(default=60.0, gt=0, le=MAX_IDLE_S)
    """Time without a step after which a sequence ends. Raise it for people who type."""
    max_lifetime_s: float | None = Field(default=None, gt=0, le=MAX_LIFETIME_S)
    """Time from its first step after which a sequence ends, even if it is in use; None for no such
    limit. Set it if states grow with each step."""
    max_sequences: int = Field(default=4096, ge=1, le=MAX_OPEN)
    """Sequences that may be open at once in one process; further ones get 503."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that callers do not send."""
        controls = [getattr(self, name) for name in CONTROLS]
        named = [control.input for control in controls if control is not None]
        return (*self.states, *named, *([self.id] if self.id is not None else []))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that callers do not get."""
        return tuple(state.output for state in self.states.values())


def state_bytes(spec: TensorSpec) -> int:
    """Returns the bytes of one row of a state."""
    return math.prod(spec.row_shape) * STATE_DATATYPES[spec.datatype]


def check_sequences(
    sequences: Sequences,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    has_batch: bool,
) -> None:
    """Checks a declaration against the tensors of its model.

    Raises:
        ValueError: a name, datatype or shape does not fit; the message says what to write.
    """
    given, found = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
    for names, what in ((sequences.inputs, "input"), (sequences.outputs, "output")):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"sequence uses {what} '{twice}' twice; give each tensor one use")
    total = 0
    for name, state in sequences.states.items():
        spec, after = _spec(name, given, "input"), _spec(state.output, found, "output")
        _check_state(spec, after, has_batch)
        _check_initial(spec, state.initial)
        total += state_bytes(spec)
    if total > MAX_STATE_BYTES:
        raise ValueError(
            f"the state of a sequence has {total} bytes; the limit is {MAX_STATE_BYTES}"
        )
    for control in CONTROLS:
        if (declared := getattr(sequences, control)) is not None:
            spec = _spec(declared.input, given, "input")
            _check_control(control, spec, CONTROL_DATATYPES, has_batch)
            for number in (declared.false, declared.true):
                _check_numbers(spec, [number])
    if sequences.id is not None:
        _check_control("id", _spec(sequences.id, given, "input"), ID_DATATYPES, has_batch)
    for specs, names, what in (
        (given, sequences.inputs, "inputs that callers send"),
        (found, sequences.outputs, "outputs that callers get"),
    ):
        if len(specs) == len(names):
            raise ValueError(f"sequence leaves no {what}; name fewer tensors")


def _spec(name: str, specs: Mapping[str, TensorSpec], what: str) -> TensorSpec:
    if name not in specs:
        raise ValueError(
            f"sequence names {what} '{name}', which the model does not have"
            f"{nearest_name(name, specs)}"
        )
    return specs[name]


def _check_state(spec: TensorSpec, after: TensorSpec, has_batch: bool) -> None:
    if spec.datatype not in STATE_DATATYPES:
        raise ValueError(
            f"state '{spec.name}' is {spec.datatype}, which has no fixed size; use numbers"
        )
    if (after.datatype, after.row_shape) != (spec.datatype, spec.row_shape):
        raise ValueError(
            f"state '{spec.name}' is {spec.datatype} {shape_text(spec.shape)} before a step, and "
            f"output '{after.name}' is {after.datatype} {shape_text(after.shape)} after it; a "
            "state keeps its datatype and shape"
        )
    if -1 in spec.row_shape:
        raise ValueError(
            f"state '{spec.name}' has shape {shape_text(spec.shape)}; every dimension but the "
            "batch must have a fixed size"
        )
    for one in (spec, after):
        _check_rows(one, has_batch)


def _check_rows(spec: TensorSpec, has_batch: bool) -> None:
    if spec.optional:
        raise ValueError(f"'{spec.name}' of a sequence is optional; the server always gives it")
    if (spec.batch_axis is not None) != has_batch:
        other, wanted = ("has", "one") if has_batch else ("has no", "none")
        raise ValueError(
            f"'{spec.name}' of a sequence has shape {shape_text(spec.shape)}, and the model "
            f"{other} batch; it must have {wanted} too"
        )


def _check_control(
    control: str, spec: TensorSpec, datatypes: Iterable[str], has_batch: bool
) -> None:
    _check_rows(spec, has_batch)
    if spec.datatype not in datatypes or math.prod(spec.row_shape) != 1:
        raise ValueError(
            f"sequence.{control} is input '{spec.name}', {spec.datatype} {shape_text(spec.shape)}; "
            f"it must have one element a row, of {', '.join(datatypes)}"
        )


def _check_initial(spec: TensorSpec, initial: Any) -> None:
    numbers = initial if isinstance(initial, tuple) else (initial,)
    size = math.prod(spec.row_shape)
    if isinstance(initial, tuple) and len(initial) != size:
        raise ValueError(
            f"the initial value of state '{spec.name}' has {len(initial)} numbers, and a row has "
            f"{size}; give so many, or one number for all"
        )
    _check_numbers(spec, numbers)


def _check_numbers(spec: TensorSpec, numbers: Iterable[Number]) -> None:
    """Checks that a datatype has the numbers: NumPy would wrap them."""
    datatype = spec.datatype
    if "FP" in datatype or datatype == "BF16":
        return
    half = 2 ** (8 * STATE_DATATYPES[datatype] - 1)
    low, high = (0, 2 * half - 1) if datatype[0] == "U" else (-half, half - 1)
    if datatype == "BOOL":
        low, high = 0, 1
    for number in numbers:
        if number != int(number) or not low <= number <= high:
            raise ValueError(f"'{spec.name}' of a sequence is {datatype} and cannot be {number}")
