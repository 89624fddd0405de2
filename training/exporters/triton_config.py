"""Writes the config.pbtxt of a version, so that Triton Inference Server can serve it too.

Source: Triton's model configuration, and the naming rule of its PyTorch backend: tensors of a
TorchScript module are identified by position, written `NAME__0`, `NAME__1`, ...
"""

from collections.abc import Sequence

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
        signature: names, datatypes and shapes; the batch is omitted, as Triton requires.
    """
    runtime, by_position = EXPORT_KINDS[kind].triton_runtime, EXPORT_KINDS[kind].triton_by_position
    return (
        f'name: "{model}"\n{runtime}\n'
        f'default_model_filename: "{file}"\n'
        f"max_batch_size: {signature.max_batch_size}\n"
        f"{_tensors('input', signature.inputs, by_position)}"
        f"{_tensors('output', signature.outputs, by_position)}"
    )


def _tensors(what: str, specs: Sequence[TensorSpec], by_position: bool) -> str:
    entries = [
        f'  {{ name: "{spec.name}{f"__{index}" if by_position else ""}" '
        f"data_type: {_data_type(spec.datatype)} dims: [ {_dims(spec)} ] }}"
        for index, spec in enumerate(specs)
    ]
    return f"{what} [\n" + ",\n".join(entries) + "\n]\n"


def _data_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _dims(spec: TensorSpec) -> str:
    # A tensor of one number per row is [rows]; Triton needs a dimension beside the batch.
    return ", ".join(str(d) for d in spec.shape[1:]) or "1"
