"""Writes the config.pbtxt of a version, so that Triton Inference Server can serve it too.

Source: Triton's model configuration, and the naming rule of its PyTorch backend: tensors of a
TorchScript module are identified by position, written `NAME__0`, `NAME__1`, ...
"""

from collections.abc import Mapping, Sequence

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.sequence_spec import CONTROLS, Control, Sequences, State
from flambeau.protocol.signature import Signature, TensorSpec
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


def config_pbtxt(model: str, kind: ArtifactKind, file: str, signature: Signature) -> str:
    """Returns the configuration of one artifact, as protobuf text.

    Args:
        model: name of the model.
        kind: kind of the artifact; one that Triton runs.
        file: file name of the artifact.
        signature: names, datatypes and shapes; the batch is omitted, as Triton requires, if it is
            the first axis of every tensor.
    """
    # Triton's batch is the first axis of every tensor; of others it takes the whole shape.
    batches = signature.is_plain
    runtime, by_position = EXPORT_KINDS[kind].triton_runtime, EXPORT_KINDS[kind].triton_by_position
    sequence, (inputs, outputs) = signature.sequence, (
        {spec.name: f"{spec.name}__{index}" if by_position else spec.name
         for index, spec in enumerate(specs)}
        for specs in (signature.inputs, signature.outputs)
    )  # fmt: skip
    called = for_callers(signature)
    return (
        f'name: "{model}"\n{runtime}\n'
        f'default_model_filename: "{file}"\n'
        f"max_batch_size: {signature.max_batch_size if batches else 0}\n"
        f"{_tensors('input', called.inputs, inputs, batches)}"
        f"{_tensors('output', called.outputs, outputs, batches)}"
        f"{'' if sequence is None else sequence_batching(signature, sequence, inputs, outputs)}"
    )


def _tensors(
    what: str, specs: Sequence[TensorSpec], names: Mapping[str, str], batches: bool
) -> str:
    optional = " optional: true"
    entries = [
        f'  {{ name: "{names[spec.name]}" '
        f"data_type: {_data_type(spec.datatype)} dims: [ {_dims(spec, batches)}"
        f"{optional * spec.optional} }}"
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
        kind = f"CONTROL_SEQUENCE_CORRID data_type: {_data_type(specs[sequence.id].datatype)} "
        controls.append(_control(inputs[sequence.id], kind))
    states = [
        _state(specs[name], inputs[name], outputs[state.output], state, signature.is_plain)
        for name, state in sequence.states.items()
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
    return f'  control_input {{ name: "{name}" control {{ kind: {kind}{values}}} }}\n'


def _state(spec: TensorSpec, name: str, output: str, state: State, batches: bool) -> str:
    data_type = f"data_type: {_data_type(spec.datatype)}"
    # Where the batch is not Triton's, a sequence runs alone.
    whole = (1 if axis == spec.batch_axis else size for axis, size in enumerate(spec.shape))
    dims = f"dims: [ {', '.join(map(str, spec.row_shape if batches else whole)) or '1'} ]"
    initial = "zero_data: true" if state.initial == 0 else f'data_file: "{name}"'
    return (
        f'  state {{ input_name: "{name}" output_name: "{output}" {data_type} {dims} '
        f'initial_state {{ name: "initial" {data_type} {dims} {initial} }} }}\n'
    )


def _data_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _dims(spec: TensorSpec, batches: bool) -> str:
    # A tensor of one number per row is [rows]; Triton needs a dimension beside the batch.
    if not batches and not spec.shape:
        return "1 ] reshape: { shape: [ ] }"
    return f"{', '.join(map(str, spec.shape[1:] if batches else spec.shape)) or '1'} ]"
