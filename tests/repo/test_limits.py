"""Limits that are constants: each is listed by its effect, and those that refuse raise an error.

Settings and keys of recipes are counted too: their numbers are frozen.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.payloads.rule import PayloadRule
from services.inference.config import InferenceConfig, ModelSettings
from services.registry_server.config import RegistryConfig
from services.standalone.config import ServerConfig
from services.trainer.config import TrainerConfig
from tests.repo.test_house_style import tracked
from tests.unit.training.recipe.test_wrong_values import keys_of
from training.recipe.schema import recipe_schema

LIMIT = re.compile(r"_?(MAX|MOST)_\w+")
SETTINGS, RECIPE_KEYS = 132, 394
"""Different names of settings, those of models and of payload samples included; keys of recipes.

`processes` cannot be found out: how many cores the models need is the operator's to say. Nor can
`model_control`: who chooses the models, their pointers or callers; or `triton_metrics`: whose
dashboards there are; or `compat`: whether a client compares the words of another server.
`shared_memory_objects` opens memory of other programs to callers, which nobody must get unasked.
`registry` opens the store to callers, which nobody must get unasked; a bucket has no
`upload_folder` that could be found, and whom `registry_webhooks` tell is the operator's to say.
For which aliases one person is too few (`registry_two_person`), and if an outage waits for the
second one (`registry_two_person_rollback`), nobody but the operator knows.
`torchserve` names the folder that its own option makes, for all processes of a server.
Where a disk has room for copies of a bucket's files (`store_cache`), and how much
(`store_cache_mib`), cannot be found out: a pod's limit of its disk is not shown to it.
Models that were trained elsewhere asked for `weights`, and own metrics for `metric` and its parts.
Whose registry gets a version (`publish.to`) is the user's to say.
"""

EFFECTS = {
    "refuses with an error": """
        grpc_edge.MAX_STREAMED_ANSWERS grpc_edge.MAX_STREAMED_OF_ONE
        grpc_requests.MAX_CHUNK_FIELDS grpc_requests.MAX_ENTRY_BYTES
        caller_reports.MAX_REPORT_BYTES
        event_feed.MAX_BEHIND event_feed.MAX_READERS event_feed.MAX_READERS_OF_ONE
        config.MAX_TWO_PERSON config.MAX_WEBHOOKS
        call_arguments.MAX_PAGE call_arguments.MAX_WHY registry.MAX_WAITING registry.MAX_MOVES_READ
        archive_registry.MAX_PASSES archive_source.MAX_DOWNLOADS running_settings.MAX_TRACE_RATE
        archive_source.MAX_REDIRECTS archive_source.MAX_URL_CHARACTERS
        request_parts.MAX_BOUNDARY_CHARACTERS request_parts.MAX_PARTS
        request_parts.MAX_PART_HEAD_BYTES request_parts._MAX_NAME_BYTES
        rest_routes.MAX_PARAMETERS start.MAX_AT_START tokens.MAX_KEY_FILE_BYTES
        grpc_predict.MAX_NAMES_BYTES tensor_proto.MAX_SHAPE_BYTES tensor_proto.MAX_REPEATED_BYTES
        evidence.MAX_COUNT evidence.MAX_NAMES evidence.MAX_PEAKS evidence.MAX_PLACE
        evidence.MAX_SHARES evidence_files.MAX_FILES evidence_files.MAX_FILE_BYTES
        evidence_files.MAX_TOTAL_BYTES
        shadow_figures.MAX_BUCKETS shadow_figures.MAX_PAIRS
        shadow_figures.MAX_REASONS
        act_limit.MAX_ACTS model_acts.MAX_MODELS json_bodies.MAX_MEMBERS
        predict_codec.MAX_PARSED_BYTES predict_codec.MAX_PLAIN_BYTES predict_codec.MAX_DEPTH
        predict_codec.MAX_PARSED_MEMBERS
        api_keys.MAX_FILE_BYTES api_keys.MAX_KEYS binary_texts.MAX_TEXTS body._MAX_LINE_BYTES
        certificate_files.MAX_PEM_BYTES channel.MAX_MESSAGE_BYTES
        classification.MAX_CLASSES classification.MAX_CLASS_TEXTS
        choice_memory.MAX_ARTIFACTS control.MAX_MESSAGE_BYTES
        code_bundle.MAX_SHARED_HEADERS generate_codec.MAX_MEMBERS
        connection.MAX_CALLS
        connection.MAX_EMPTY_BYTES frames.MAX_FRAME_BYTES frames.MAX_OTHER_FRAME_BYTES
        grpc_calls.MAX_CALLS
        grpc_health.MAX_WATCHES grpc_health.MAX_WATCHES_A_CONNECTION grpc_raw.MAX_FIELDS
        grpc_raw.MAX_INNER_FIELDS grpc_raw.MAX_TYPED_BYTES grpc_reflection.MAX_UNREAD_BYTES
        grpc_reflection.MAX_WAITING grpc_stream.MAX_STREAMS
        head.MAX_HEADERS head.MAX_HEAD_BYTES head.MAX_TARGET_BYTES
        headers.MAX_BLOCK_BYTES headers.MAX_FIELDS_BYTES headers._MAX_RESIZES
        model_rollout.MAX_CONDITIONS model_rollout.MAX_OWN_WHY
        registry_rollouts.MAX_TOKEN_BYTES
        key_set.MAX_SET_BYTES object_api.MAX_ANSWER_BYTES object_api.MAX_LINE_BYTES
        object_api.MAX_PAGES object_api.MAX_TOKEN_BYTES lanes.MAX_TRIES
        message_fields.MAX_FIELDS message_fields._MAX_VARINT_BYTES onnx_runtime.MAX_TEXTS
        pipeline_run.MAX_RESTARTS
        regions.MAX_NAME regions.MAX_REGIONS regions.MAX_REGIONS_A_CALLER
        shared_object.MAX_KEY_BYTES
        request_pacer.MAX_WAITING
        rest.MAX_NUMBER_DIGITS scheduling_parameters.MAX_TIMEOUT_US
        sequence_parameters.MAX_ID_BYTES sequence_parameters.MAX_ID_NUMBER
        sequence_slots.MAX_STATES_BYTES
        sequence_steps.MAX_WAITING_STEPS shared_tensors.MAX_PLACES shared_tensors.MAX_PLACE_BYTES
        shared_tensors.MAX_STRINGS sliced_work.MAX_WAITING spans.MAX_BESIDE_BYTES
        spans.MAX_BESIDE_MEMBERS submission_body.MAX_BESIDE_BYTES submission_body.MAX_MEMBERS
        submission_body.MAX_OVERRIDES_BYTES training_job_service.MAX_EVENT
        training_job_service.MAX_OVERRIDES
        watched_file.MAX_BYTES web_tokens.MAX_TOKEN_BYTES
        """,
    "ends connections, and counts them, in another function": """
        body._MAX_TRAILER_BYTES calm.MAX_SETTINGS_BYTES grpc_connection.MAX_SHED_CALLS
        ports.MAX_METRICS_CONNECTIONS
        tls_handshakes.MAX_RUNNING
        """,
    "drops, and counts": """
        mirrors.MOST_IN_FLIGHT mirrors.MOST_IN_FLIGHT_BYTES mirrors.MOST_TEXTS
        sampler.MAX_WAITING sampler.MAX_WAITING_BYTES tracer.MAX_KEPT
        torchserve_metrics.MAX_HANDLER_METRICS torchserve_metrics.MAX_HANDLER_SERIES
        """,
    "makes callers wait, or answers them without a wait": """
        event_webhooks.MAX_TELLING event_webhooks.MAX_LATER load_turns.MAX_SLOW
        charges.MAX_PIPELINED charges.MAX_PIPELINED_BYTES reading.MAX_HELD_BYTES
        grpc_jobs.MAX_WAITING grpc_stream.MAX_IN_FLIGHT job_service.MAX_WAIT_S
        outbox.MOST_WAITING part_window.MAX_UNREAD part_window.MAX_UNREAD_SMALL
        registry_threads.MAX_UNPACKINGS loading_requests.MAX_LOADING
        """,
    "forgets entries": """
        recent_callers.MAX_CALLERS recent_callers.MAX_KINDS recent_callers.MAX_MODELS
        deployment_callers.MAX_READ_BYTES deployment_callers.MAX_REPORTS
        event_webhooks.MAX_AGE_S
        draw.MAX_OPEN_SEQUENCES left_folders.MAX_LEFT_FOLDERS
        admission.MAX_KINDS authenticator.MAX_TOKENS caller.MAX_REMEMBERED choice_memory.MAX_CHOICES
        grpc_connection.MAX_KNOWN_BLOCK_BYTES grpc_connection.MAX_KNOWN_BYTES latency.MAX_CURVES
        kept_memory.MOST_KEPT_BYTES link_rates.MAX_BUCKETS
        needs_memory.MAX_NEEDS plan.MAX_KINDS
        port.MAX_KNOWN_BYTES port.MAX_KNOWN_HEADS port.MAX_KNOWN_HEAD_BYTES
        dead_letters.MAX_DEAD_LETTERS request_accounting._MAX_CACHED_LABELS tenants.MAX_TENANTS
        """,
    "shortens or samples": """
        broken_callers.MOST_CHARACTERS broken_callers.MOST_OF_NAME broken_callers.MOST_TOLD
        deployment_callers.MAX_COMPLAINTS deployment_callers.MOST_REPORTS_TOLD
        recent_callers.MAX_CALLER_NAME
        reconciliation.MAX_REASON registry_rollouts.MAX_ACT_WHY registry_rollouts.MOST_PAGES
        logs.MAX_TEXT_CHARACTERS
        comparison_files.MAX_SHADOW_BYTES comparison_files.MAX_SHADOW_FILES
        gateway_counts.MAX_GATEWAYS gateway_counts.MAX_GATEWAY_BYTES gateway_counts.MAX_REDIS_BYTES
        gateway_counts.MAX_COMPLAINTS comparison_files.MAX_TEXT comparison_files.MOST_PAIRS_BYTES
        shown_tensors.MOST_SHOWN_BYTES
        forwarded_output.MAX_LINE_BYTES log_output.MAX_WAITING_BYTES rest_prediction.MAX_NAME_BYTES
        model_figures.MAX_PLACES model_figures.MAX_SIZES repository.MAX_NAME directory.MAX_SHOWN
        open_document.MAX_DOCUMENT_BYTES open_document.MAX_TENSORS
        executor.MAX_METRICS grpc_call._MAX_WORDS_BYTES key_set.MAX_KEYS
        onnx_runtime.MAX_SHOWN
        model_set.MAX_REASON model_set.MAX_UNLOADED
        traffic_counts.MOST_LATENCIES_A_BLOCK
        model_failure.MAX_REASON probe_host._MAX_ERROR_CHARACTERS readiness.MAX_REASONS
        readiness.MAX_REASON_CHARACTERS tensors.MAX_ELEMENTS_OF_STATISTICS tensors.MAX_TEXTS
        """,
    "sizes a piece of work, or chooses how it is done": """
        artifact_needs.MOST_BYTES background_choice.MOST_MEASURING_S batcher.MAX_BATCH_BYTES
        batcher.MAX_SHARED_BYTES binary_texts.MAX_TEXTS_AT_ONCE_BYTES
        compression._MAX_ACCEPT_BYTES config.MOST_AUTOMATIC frames.MAX_WINDOW
        grpc_connection.MAX_SILENT_CALLS kubeflow.MAX_READ_BYTES latency.MAX_DOUBTS
        latency.MAX_OBSERVATION_RATIO latency.MOST_COLD_S lease.MAX_LEASE_BYTES
        loop_runs.MOST_BOOKED_S loop_runs.MOST_BOUND_S numbers.MAX_SLOW_NUMBERS
        open_port._MAX_SWEEP_S outbox.MOST_AT_ONCE probe_host.MAX_INPUT_BYTES
        reconciler.MAX_GENERATIONS_TRIED request_path.MAX_ESCAPES sending.MAX_WRITTEN_FRAME_BYTES
        server.MAX_HELD shared_rates.MAX_AT_ONCE slices._MAX_ESCAPE_BYTES
        tls_handshakes._MAX_RECORD_BYTES
        """,
}
"""Constants of `services`, as file and name, by the effect of reaching them."""
REFUSING_CALLS = {"refuse", "read_plain_file", "read_file", "send_400_response", "loads"}
"""Functions that refuse, or raise an error for what is larger than their argument."""
REFUSING_ARGUMENTS = {"max_length", "maximum_concurrent_rpcs"}


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in tracked("services/*.py")}


def limits() -> Iterator[str]:
    for path, module in modules().items():
        for node in module.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            yield from (f"{path.stem}.{name}" for name in names if LIMIT.fullmatch(name))


def users(limit: str) -> Iterator[ast.AST]:
    """Functions, and classes of fields, that name a constant."""
    stem, name = limit.split(".")
    for path, module in modules().items():
        imported = any(
            isinstance(node, ast.ImportFrom)
            and str(node.module).endswith(f".{stem}")
            and any(one.name == name for one in node.names)
            for node in module.body
        )
        if path.stem != stem and not imported:
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign):
                inner = list(ast.walk(node))
                if any(isinstance(one, ast.Name) and one.id == name for one in inner):
                    yield node


def refuses(user: ast.AST) -> bool:
    for node in ast.walk(user):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.keyword) and node.arg in REFUSING_ARGUMENTS:
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called.endswith("Error") or called in REFUSING_CALLS:
                return True
    return False


def test_every_limit_is_listed_with_its_effect() -> None:
    listed = [limit for names in EFFECTS.values() for limit in names.split()]
    assert len(listed) == len(set(listed))
    assert sorted(set(limits())) == sorted(listed), "add it to EFFECTS, where it belongs"


@pytest.mark.parametrize("limit", EFFECTS["refuses with an error"].split())
def test_limit_that_refuses_raises_an_error(limit: str) -> None:
    assert any(map(refuses, users(limit)))


def test_settings_are_no_more() -> None:
    processes = (GatewayConfig, InferenceConfig, RegistryConfig, ServerConfig, TrainerConfig)
    names = {name for kind in processes for name in kind.model_fields}
    found = len(names) + len(ModelSettings.model_fields) + len(PayloadRule.model_fields)
    assert found <= SETTINGS, "a new setting replaces another: remove one"
    assert found == SETTINGS, "there are fewer now: lower SETTINGS"


def test_recipe_keys_are_no_more() -> None:
    schema = recipe_schema()
    found = len(set(keys_of(schema, schema)))
    assert found <= RECIPE_KEYS, "a new key replaces another: remove one"
    assert found == RECIPE_KEYS, "there are fewer now: lower RECIPE_KEYS"
