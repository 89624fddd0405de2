"""Writes the config.pbtxt of a version, so that Triton Inference Server can serve it too.

Source: Triton's model configuration, and the naming rule of its PyTorch backend: tensors of a
TorchScript module are identified by position, written `NAME__0`, `NAME__1`, ...
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.sequence_spec import CONTROLS, Control, Sequences, State
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.triton_tensors import (
    config_batch_size,
    config_data_type,
    config_dims,
    has_config_batch,
)
from model_store.artifact_kinds import ArtifactKind
from model_store.manifest import Artifact
from training.recipe.kinds.export_kinds import EXPORT_KINDS


def triton_config(model: str, artifacts: Sequence[Artifact], signature: Signature) -> str:
    """Returns the configuration of a version; empty if Triton can run none of its artifacts.

    Triton gets the fastest artifact of the baseline, which is data, or else of all that it runs.

    Args:
        model: name of the model.
        artifacts: the version's.
        signature: of the artifacts themselves, without a Python step.
    """
    runnable = [one for one in artifacts if EXPORT_KINDS[one.kind].triton_runtime]
    if not runnable:
        return ""
    best = min(runnable, key=lambda a: (not EXPORT_KINDS[a.kind].is_baseline, a.speed_key()))
    return config_pbtxt(model, best.kind, best.file.file, signature)


def config_pbtxt(
    model: str,
    kind: ArtifactKind,
    file: str,
    signature: Signature,
    more: str = "",
    optional: Collection[str | None] = (),
) -> str:
    """Returns the configuration of one artifact, as protobuf text.

    Args:
        model: name of the model.
        kind: kind of the artifact, one that Triton runs; `python` for a file of its Python backend.
        file: file name of the artifact.
        signature: names, datatypes and shapes; the batch is omitted, as Triton requires, if it is
            the first axis of every tensor.
        more: further fields.
        optional: inputs that requests may omit, beside those of the signature.
    """
    batches = has_config_batch(signature)
    exported = EXPORT_KINDS[kind]
    runtime = exported.triton_runtime or 'backend: "python"'
    by_position = exported.triton_by_position
    sequence, (inputs, outputs) = signature.sequence, (
        {spec.name: f"{spec.name}__{index}" if by_position else spec.name
         for index, spec in enumerate(specs)}
        for specs in (signature.inputs, signature.outputs)
    )  # fmt: skip
    called = for_callers(signature)
    return (
        f"name: {quoted(model)}\n{runtime}\n"
        f"default_model_filename: {quoted(file)}\n"
        f"max_batch_size: {config_batch_size(signature)}\n"
        f"{_tensors('input', called.inputs, inputs, batches, optional)}"
        f"{_tensors('output', called.outputs, outputs, batches)}"
        f"{'' if sequence is None else sequence_batching(signature, sequence, inputs, outputs)}"
        f"{more}"
    )


def quoted(text: str) -> str:
    """Returns a string as protobuf text has it, whatever its characters are."""
    plain = (c if c.isprintable() and c not in '"\\' else _octal(c) for c in text)
    return f'"{"".join(plain)}"'


def _octal(character: str) -> str:
    data = character.encode(errors="surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in data)


def _tensors(
    what: str,
    specs: Sequence[TensorSpec],
    names: Mapping[str, str],
    batches: bool,
    optional: Collection[str | None] = (),
) -> str:
    entries = [
        f"  {{ name: {quoted(names[spec.name])} "
        f"data_type: {config_data_type(spec.datatype)} dims: [ {_dims(spec, batches)}"
        f"{' optional: true' if spec.optional or spec.name in optional else ''} }}"
        for spec in specs
    ]
    return f"{what} [\n" + ",\n".join(entries) + "\n]\n"


def sequence_batching(
    signature: Signature,
    sequence: Sequences,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
) -> str:
    """Returns the field `sequence_batching` of a model with state.

    Args:
        signature: with all tensors of the artifact.
        sequence: its declaration.
        inputs: Triton's name of each input.
        outputs: Triton's name of each output.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    controls = [
        _control(inputs[one.input], f"CONTROL_SEQUENCE_{name.upper()} ", specs[one.input], one)
        for name in CONTROLS
        if (one := getattr(sequence, name)) is not None
    ]
    if sequence.id is not None:
        data_type = config_data_type(specs[sequence.id].datatype)
        kind = f"CONTROL_SEQUENCE_CORRID data_type: {data_type} "
        controls.append(_control(inputs[sequence.id], kind))
    states = [
        _state(specs[name], (inputs[name], outputs[state.output]), state, signature, place)
        for place, (name, state) in enumerate(sequence.states.items())
    ]
    oldest = f"oldest {{ max_candidate_sequences: {sequence.max_sequences} }}"
    return (
        "sequence_batching {\n"
        f"  max_sequence_idle_microseconds: {round(sequence.max_idle_s * 1e6)}\n"
        f"  {oldest if sequence.strategy == 'oldest' else 'direct { }'}\n"
        f"{''.join(controls)}{''.join(states)}}}\n"
    )


def _control(
    name: str, kind: str, spec: TensorSpec | None = None, control: Control | None = None
) -> str:
    values = ""
    if spec is not None and control is not None:
        field = f"{spec.datatype.lower()}_false_true"
        as_text = (lambda value: str(bool(value)).lower()) if spec.datatype == "BOOL" else str
        values = f"{field}: [ {as_text(control.false)}, {as_text(control.true)} ] "
    return f"  control_input {{ name: {quoted(name)} control {{ kind: {kind}{values}}} }}\n"


def _state(
    spec: TensorSpec, names: tuple[str, str], state: State, signature: Signature, place: int
) -> str:
    data_type = f"data_type: {config_data_type(spec.datatype)}"
    dims = f"dims: [ {', '.join(map(str, _state_shape(spec, signature))) or '1'} ]"
    file = quoted(_state_file(place))
    initial = "zero_data: true" if state.initial == 0 else f"data_file: {file}"
    given, made = map(quoted, names)
    return (
        f"  state {{ input_name: {given} output_name: {made} {data_type} {dims} "
        f'initial_state {{ name: "initial" {data_type} {dims} {initial} }} }}\n'
    )


def _state_shape(spec: TensorSpec, signature: Signature) -> tuple[int, ...]:
    # Where the batch is not Triton's, a sequence runs alone.
    whole = tuple(1 if axis == spec.batch_axis else size for axis, size in enumerate(spec.shape))
    return spec.row_shape if signature.is_plain else whole


def _state_file(place: int) -> str:
    return f"state_{place}"


def initial_states(signature: Signature) -> dict[str, bytes]:
    """Returns the files of `initial_state/`, by name: initial values that are not 0."""
    import numpy as np

    from flambeau.protocol.tensors import DATATYPES

    files: dict[str, bytes] = {}
    states = {} if signature.sequence is None else signature.sequence.states
    specs = {spec.name: spec for spec in signature.inputs}
    for place, (name, state) in enumerate(states.items()):
        if state.initial != 0:
            spec = specs[name]
            dtype: Any = DATATYPES[spec.datatype]
            values = np.asarray(state.initial).astype(dtype)
            shape = _state_shape(spec, signature)
            whole = values.reshape(shape) if values.ndim else np.full(shape, values)
            files[_state_file(place)] = whole.tobytes()
    return files


def _dims(spec: TensorSpec, batches: bool) -> str:
    dims, reshape = config_dims(spec, batches)
    text = f"{', '.join(map(str, dims))} ]"
    return text if reshape is None else f"{text} reshape: {{ shape: [ ] }}"
