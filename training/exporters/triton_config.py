"""Writes the config.pbtxt of a version, so that Triton Inference Server can serve it too.

Source: Triton's model configuration, and the naming rule of its PyTorch backend: tensors of a
TorchScript module are identified by position, written `NAME__0`, `NAME__1`, ...
"""

from collections.abc import Sequence

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


def config_pbtxt(model: str, kind: ArtifactKind, file: str, signature: Signature) -> str:
    """Returns the configuration of one artifact, as protobuf text.

    Args:
        model: name of the model.
        kind: kind of the artifact; one that Triton runs.
        file: file name of the artifact.
        signature: names, datatypes and shapes; the batch is omitted, as Triton requires, if it is
            the first axis of every tensor.
    """
    batches = has_config_batch(signature)
    runtime, by_position = EXPORT_KINDS[kind].triton_runtime, EXPORT_KINDS[kind].triton_by_position
    return (
        f'name: "{model}"\n{runtime}\n'
        f'default_model_filename: "{file}"\n'
        f"max_batch_size: {config_batch_size(signature)}\n"
        f"{_tensors('input', signature.inputs, by_position, batches)}"
        f"{_tensors('output', signature.outputs, by_position, batches)}"
    )


def _tensors(what: str, specs: Sequence[TensorSpec], by_position: bool, batches: bool) -> str:
    optional = " optional: true"
    entries = [
        f'  {{ name: "{spec.name}{f"__{index}" if by_position else ""}" '
        f"data_type: {config_data_type(spec.datatype)} dims: [ {_dims(spec, batches)}"
        f"{optional * spec.optional} }}"
        for index, spec in enumerate(specs)
    ]
    return f"{what} [\n" + ",\n".join(entries) + "\n]\n"


def _dims(spec: TensorSpec, batches: bool) -> str:
    dims, reshape = config_dims(spec, batches)
    text = f"{', '.join(map(str, dims))} ]"
    return text if reshape is None else f"{text} reshape: {{ shape: [ ] }}"
