"""The configuration of a version, as Triton's `ModelConfig` message.

In: a served version and its signature. Out: the message; `message_document.py` makes JSON of it.
Tensors are those of the version's `config.pbtxt` (`protocol/triton_tensors.py`), under the names
that requests use.
"""

from collections.abc import Iterable

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensor_spec import TensorSpec
from flambeau.protocol.triton_tensors import (
    config_batch_size,
    config_data_type,
    config_dims,
    has_config_batch,
)
from protos import model_config_pb2 as pb
from services.queueing.records import (
    DEFAULT_PRIORITY,
    LOWEST_PRIORITY,
    Execution,
    PipelineStep,
    ServedVersion,
)

BACKEND = "flambeau"


def config_message(
    served: ServedVersion, signature: Signature, versions: Iterable[int]
) -> pb.ModelConfig:
    """Returns the configuration of a version.

    Args:
        served: the version.
        signature: its signature.
        versions: the versions of its model that are ready.
    """
    execution = served.execution or Execution()
    config = pb.ModelConfig(
        name=served.lane.model,
        platform="ensemble" if served.is_pipeline else served.platform,
        backend="" if served.is_pipeline else BACKEND,
        max_batch_size=config_batch_size(signature),
        default_model_filename=execution.file,
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=execution.gives_parts),
    )
    config.version_policy.specific.versions.extend(versions)
    _add_tensors(config, signature)
    for name, text in (("artifact", served.artifact), ("semver", served.semver)):
        if text:
            config.parameters[name].string_value = text
    if served.is_pipeline:
        config.ensemble_scheduling.step.extend(map(_step, execution.steps))
    else:
        _add_instances(config, execution)
        if config.max_batch_size > 1:
            config.dynamic_batching.CopyFrom(_batching(execution))
    return config


def _add_tensors(config: pb.ModelConfig, signature: Signature) -> None:
    has_batch = has_config_batch(signature)
    for spec in signature.inputs:
        _fill(config.input.add(optional=spec.optional), spec, has_batch)
    for spec in signature.outputs:
        _fill(config.output.add(), spec, has_batch)


def _fill(tensor: pb.ModelInput | pb.ModelOutput, spec: TensorSpec, has_batch: bool) -> None:
    dims, reshape = config_dims(spec, has_batch)
    tensor.name = spec.name
    tensor.data_type = getattr(pb, config_data_type(spec.datatype))
    tensor.dims.extend(dims)
    if reshape is not None:
        tensor.reshape.shape.extend(reshape)
        tensor.reshape.SetInParent()


def _add_instances(config: pb.ModelConfig, execution: Execution) -> None:
    kind, _, number = execution.device.partition(":")
    is_gpu = kind == "cuda"
    config.instance_group.add(
        name=f"{config.name}_0",
        kind=pb.ModelInstanceGroup.KIND_GPU if is_gpu else pb.ModelInstanceGroup.KIND_CPU,
        count=execution.instances,
        gpus=[int(number or 0)] if is_gpu else [],
    )


def _batching(execution: Execution) -> pb.ModelDynamicBatching:
    return pb.ModelDynamicBatching(
        preferred_batch_size=execution.preferred_rows,
        max_queue_delay_microseconds=execution.batch_wait_us,
        priority_levels=LOWEST_PRIORITY,
        default_priority_level=DEFAULT_PRIORITY,
        default_queue_policy=pb.ModelQueuePolicy(allow_timeout_override=True),
    )


def _step(step: PipelineStep) -> pb.ModelEnsembling.Step:
    return pb.ModelEnsembling.Step(
        model_name=step.model,
        model_version=step.version,
        input_map=step.inputs,
        output_map=step.outputs,
    )
