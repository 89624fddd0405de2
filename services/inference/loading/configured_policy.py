"""Converts a process' settings into policies: a default, and one per model with own settings."""

from services.inference.backends.device import parse_device
from services.inference.backends.onnx_providers import OnnxOnGpu
from services.inference.backends.open_options import OpenOptions
from services.inference.config import InferenceSettings, ModelSettings
from services.inference.loading.artifact_choice import ChoiceRules
from services.inference.loading.artifact_needs import ArtifactNeeds
from services.inference.loading.loader import LoadOptions
from services.inference.loading.policy import LanePolicy, ServingPolicy

MEBIBYTE = 2**20


def serving_policy(config: InferenceSettings) -> ServingPolicy:
    """Returns the policy of a process' settings: which models of the store to serve, and how."""
    needs = ArtifactNeeds(
        config.max_model_memory_mib * MEBIBYTE, config.open_time_limit_s, config.needs_file
    )
    return ServingPolicy(
        models=config.models,
        newest_versions=config.newest_versions,
        poll_interval_s=config.store_poll_interval_s,
        retry_failed_s=config.retry_failed_s,
        lane=_lane_policy(config, ModelSettings(), needs),
        by_model={n: _lane_policy(config, own, needs) for n, own in config.model_settings.items()},
        max_memory_bytes=config.max_memory_mib * MEBIBYTE,
        control=config.model_control,
        unload_idle=config.when_memory_full == "unload_idle",
        max_concurrent_runs=config.max_concurrent_runs,
    )


def _lane_policy(config: InferenceSettings, own: ModelSettings, needs: ArtifactNeeds) -> LanePolicy:
    """Returns the server's settings, overridden by the model's own."""
    chosen = {
        name: getattr(config, name) if value is None else value
        for name, value in ((name, getattr(own, name)) for name in ModelSettings.model_fields)
    }
    return LanePolicy(
        load=LoadOptions(
            backend=OpenOptions(
                device=parse_device(config.device),
                threads=chosen["threads"],
                preferred_batch_sizes=chosen["preferred_batch_sizes"],
                onnx_on_gpu=OnnxOnGpu(
                    providers=chosen["onnx_providers"],
                    engine_cache=config.engine_cache,
                    engine_cache_bytes=config.engine_cache_mib * MEBIBYTE,
                ),
            ),
            instances=chosen["instances"],
            overlaps=config.max_concurrent_runs != 1,
            isolate=chosen["isolate"],
            artifact=chosen["artifact"],
            accuracy=chosen["accuracy"],
            keep=chosen["keep_artifacts"],
            choice=ChoiceRules(budget_s=config.choose_artifact_budget_s, file=config.choice_file),
            needs=needs,
            trust=config.trust(),
        ),
        batch_wait_s=chosen["batch_wait_ms"] / 1000,
        execution_timeout_s=chosen["execution_timeout_s"],
    )
