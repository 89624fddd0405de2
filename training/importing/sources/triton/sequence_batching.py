"""Reads `sequence_batching` of a Triton configuration as a declaration of sequences.

In: the field, and the folder of its model, which has the files of initial states. Out: the
declaration, the tensors that requests do not carry, notes.

Rules: what a declaration cannot say is refused by its name; a limit above ours becomes ours, with a
note; fields about the time to form batches are settings of the server, with a note.

Source: Triton's model configuration, `ModelSequenceBatching`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from flambeau.protocol.sequence_spec import (
    MAX_IDLE_S,
    MAX_INITIAL,
    MAX_OPEN,
    MAX_STATE_BYTES,
    STATE_DATATYPES,
    Sequences,
)
from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import DATATYPES, Array
from training.errors import SourceError
from training.importing.sources.foreign_files import beside, file_size
from training.importing.sources.read_tensor import BATCH, ReadTensor
from training.importing.sources.triton.config_tensor import config_datatype, config_tensor
from training.importing.sources.triton.protobuf_text import Message, Value

FIELD = "sequence_batching"
INITIAL_STATES = "initial_state"
"""Folder of the files of initial states, beside the versions."""
DEFAULT_IDLE_US = 1_000_000
"""Triton's own, for a configuration that states none."""

_CONTROLS = {"START": "start", "READY": "ready", "END": "end", "CORRID": "id"}
"""Controls of a declaration by Triton's names, in the order of their numbers."""
_FALSE_TRUE = {
    "INT32": "int32_false_true", "FP32": "fp32_false_true", "BOOL": "bool_false_true",
}  # fmt: skip
_TRUTHS = {"false": False, "False": False, "f": False, "true": True, "True": True, "t": True}
_FIELDS = frozenset({
    "max_sequence_idle_microseconds", "control_input", "direct", "oldest", "state",
    "iterative_sequence",
})  # fmt: skip
_STATE_FIELDS = frozenset({
    "input_name", "output_name", "data_type", "dims", "initial_state",
    "use_same_buffer_for_input_output", "use_growable_memory",
})  # fmt: skip
_OF_SERVER = frozenset({
    "max_queue_delay_microseconds", "minimum_slot_utilization", "preferred_batch_size",
    "preserve_ordering",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatching:
    """Sequences of a model, as its configuration has them."""

    declaration: Sequences
    inputs: tuple[ReadTensor, ...]
    """States and controls."""
    outputs: tuple[ReadTensor, ...]
    """States after a step."""
    notes: tuple[str, ...]


def sequence_batching(where: str, folder: Path, field: Message, most: int) -> SequenceBatching:
    """Reads the field of a configuration.

    Args:
        where: the configuration, for messages.
        folder: of the model.
        field: the field.
        most: `max_batch_size`.

    Raises:
        SourceError: the field is not valid, or says what cannot be kept.
    """
    _check_known(where, FIELD, field, _FIELDS)
    if field.is_set("iterative_sequence"):
        raise SourceError(
            f"{where}: {FIELD}.iterative_sequence runs a request several times, which servers here "
            "do not; send a request for each step, and leave it out"
        )
    limits, notes = _limits(where, folder.name, field)
    controls, inputs = _controls(where, field, most)
    states, before, after = _states(where, folder, field, most)
    try:
        declaration = Sequences.model_validate({**limits, **controls, "states": states})
    except ValidationError as error:
        raise SourceError(f"{where}: {FIELD}: {explain(error, Sequences)}") from error
    return SequenceBatching(
        declaration=declaration, inputs=(*before, *inputs), outputs=after, notes=notes
    )


def _check_known(where: str, what: str, message: Message, known: frozenset[str]) -> None:
    unknown = [key for key in message.fields if key not in known]
    if unknown:
        raise SourceError(
            f"{where}: {what}.{unknown[0][:80]} is not understood; remove it, or declare the "
            "sequences by --sequence and remove the field"
        )


def _limits(where: str, name: str, field: Message) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns strategy, idle time and number of sequences, and notes about the model `name`."""
    direct, oldest = field.messages("direct"), field.messages("oldest")
    if direct and oldest:
        raise SourceError(f"{where}: {FIELD} has the strategies direct and oldest; keep one")
    strategy = "oldest" if oldest else "direct"
    options = (oldest or direct or [Message()])[-1]
    _check_known(where, f"{FIELD}.{strategy}", options, _OF_SERVER | {"max_candidate_sequences"})
    notes = []
    idle_us = (field.numbers("max_sequence_idle_microseconds") or [0])[-1] or DEFAULT_IDLE_US
    if idle_us < 0:
        raise SourceError(f"{where}: {FIELD}.max_sequence_idle_microseconds is {idle_us}")
    if idle_us > MAX_IDLE_S * 1e6:
        notes.append(f"max_sequence_idle_microseconds is {idle_us}; sequences end after an hour")
    limits: dict[str, Any] = {"strategy": strategy, "max_idle_s": min(idle_us / 1e6, MAX_IDLE_S)}
    if oldest and (candidates := options.numbers("max_candidate_sequences")):
        if candidates[-1] < 1:
            raise SourceError(f"{where}: max_candidate_sequences is {candidates[-1]}; write 1 up")
        limits["max_sequences"] = min(candidates[-1], MAX_OPEN)
        notes.append(
            f"max_candidate_sequences: sequences beyond {limits['max_sequences']:,} get 503 here, "
            "where Triton lets them wait"
        )
    if own := [key for key in options.fields if key in _OF_SERVER]:
        notes.append(f"{FIELD}: {', '.join(own)} are settings of the server here")
    return limits, tuple(f"{name}: {note}" for note in notes)


def _controls(
    where: str, field: Message, most: int
) -> tuple[dict[str, Any], tuple[ReadTensor, ...]]:
    """Returns the controls of the declaration, and their tensors."""
    found: dict[str, Any] = {}
    tensors = []
    for message in field.messages("control_input"):
        name, controls = message.text("name"), message.messages("control")
        what = f"control_input '{name[:80]}'"
        if len(controls) != 1:
            raise SourceError(
                f"{where}: {what} has {len(controls)} controls; an input has one meaning here"
            )
        kind = _kind(where, what, controls[0])
        if kind in found:
            raise SourceError(f"{where}: {what} is a second control of its kind; keep one")
        if kind == "id":
            found[kind], datatype = name, config_datatype(where, what, controls[0])
        else:
            datatype, (false, true) = _false_true(where, what, controls[0])
            found[kind] = {"input": name, "false": false, "true": true}
        dims = (BATCH, 1) if most > 0 else (1,)
        tensors.append(ReadTensor(name=name, datatype=datatype, dims=dims))
    return found, tuple(tensors)


def _kind(where: str, what: str, control: Message) -> str:
    """Returns the declaration's name of a control: by its name, its number, or the first."""
    text = control.text("kind").removeprefix("CONTROL_SEQUENCE_")
    names = dict(enumerate(_CONTROLS))
    name = text or names.get((control.numbers("kind") or [0])[-1], "")
    if name not in _CONTROLS:
        known = ", ".join(f"CONTROL_SEQUENCE_{one}" for one in _CONTROLS)
        raise SourceError(f"{where}: {what} has the kind {text[:40]!r}; write one of {known}")
    return _CONTROLS[name]


def _false_true(
    where: str, what: str, control: Message
) -> tuple[str, Sequence[bool | int | float]]:
    """Returns the datatype of a control, and its two values."""
    given = [(kind, name) for kind, name in _FALSE_TRUE.items() if name in control.fields]
    if len(given) != 1:
        raise SourceError(f"{where}: {what} needs one of {', '.join(_FALSE_TRUE.values())}")
    ((datatype, name),) = given
    values = [_number(value) for value in control.fields[name]]
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(values) != 2 or len(numbers) != 2:
        raise SourceError(f"{where}: {what} has {len(values)} values of {name}; write two numbers")
    return datatype, numbers


def _number(value: Value) -> bool | int | float | None:
    if isinstance(value, str):
        return _TRUTHS.get(value)
    return None if isinstance(value, Message) else value


def _states(
    where: str, folder: Path, field: Message, most: int
) -> tuple[dict[str, Any], tuple[ReadTensor, ...], tuple[ReadTensor, ...]]:
    """Returns the states of the declaration, and their tensors before and after a step."""
    states: dict[str, Any] = {}
    before: list[ReadTensor] = []
    after: list[ReadTensor] = []
    for message in field.messages("state"):
        name, output = message.text("input_name"), message.text("output_name")
        what = f"{FIELD}.state '{name[:80]}'"
        _check_known(where, what, message, _STATE_FIELDS)
        if message.is_set("use_growable_memory"):
            raise SourceError(
                f"{where}: {what} grows (use_growable_memory), and states keep their size here; "
                "give it fixed dims"
            )
        if name in states:
            raise SourceError(f"{where}: {what} is there twice; keep one")
        tensor = config_tensor(where, "state", message, most, "input_name")
        if tensor.datatype not in STATE_DATATYPES:
            raise SourceError(f"{where}: {what} is text, which has no fixed size; use numbers")
        states[name] = {
            "output": output,
            "initial": _initial(where, what, folder, message, tensor.datatype),
        }
        before.append(tensor)
        after.append(ReadTensor(name=output, datatype=tensor.datatype, dims=tensor.dims))
    return states, tuple(before), tuple(after)


def _initial(
    where: str, what: str, folder: Path, state: Message, datatype: str
) -> float | tuple[float, ...]:
    """Returns the initial value of a state: one number for all elements, or each of a row's.

    Without one, Triton leaves memory as it is; here it is zeros.
    """
    initials = state.messages("initial_state")
    if len(initials) > 1:
        raise SourceError(f"{where}: {what} has {len(initials)} initial states; keep one")
    file = initials[0].text("data_file") if initials else ""
    if not file:
        return 0
    if config_datatype(where, f"the initial state of {what}", initials[0]) != datatype:
        raise SourceError(f"{where}: {what} and its initial state differ in data_type")
    path = beside(folder / INITIAL_STATES, file, f"{where}: {what}")
    size = math.prod(initials[0].numbers("dims") or state.numbers("dims"))
    wanted = size * STATE_DATATYPES[datatype]
    if wanted > MAX_STATE_BYTES:
        raise SourceError(f"{where}: {what} has {wanted:,} bytes; the limit is {MAX_STATE_BYTES:,}")
    if (there := file_size(path)) != wanted:
        raise SourceError(
            f"{where}: {what} has {size:,} elements of {datatype}, {wanted:,} bytes, and {path} "
            f"has {there:,}; write the values of a row"
        )
    numbers: Array = np.frombuffer(path.read_bytes(), DATATYPES[datatype])
    if datatype == "BF16":
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    if not np.isfinite(numbers).all():
        raise SourceError(f"{where}: {what} begins with infinite or undefined numbers in {path}")
    if (numbers == numbers[0]).all():
        return float(numbers[0]) if numbers.dtype.kind == "f" else int(numbers[0])
    if size > MAX_INITIAL:
        raise SourceError(
            f"{where}: {what} has {size:,} initial values that differ, and {MAX_INITIAL:,} are "
            "kept; let the model compute them at its first step"
        )
    return tuple(numbers.tolist())
