"""TorchServe's `config.properties` and its variables of the environment."""

import json

import pytest

from model_store.archives.model_snapshot import MAX_SNAPSHOT_MODELS
from model_store.archives.properties_text import parse_properties
from model_store.archives.server_properties import ServerProperties, parse_server_properties
from model_store.errors import ServerPropertiesError


def test_the_format_is_that_of_java() -> None:
    text = (
        "# comment\n! comment\n\na=1\n b : two words \nc three\nd=\\u0041\\n\\=\n"
        "e=one,\\\n   two\nempty=\nkey\\ with\\:blank=x\r\na=2"
    )
    assert parse_properties(text.encode(), "config.properties") == {
        "a": "2", "b": "two words ", "c": "three", "d": "A\n=", "e": "one,two", "empty": "",
        "key with:blank": "x",
    }  # fmt: skip


def test_an_empty_file_has_the_defaults() -> None:
    assert parse_server_properties(b"", "c", {}) == ServerProperties()


def test_settings_are_read_and_the_others_are_listed() -> None:
    text = b"""
inference_address=https://0.0.0.0:8443
grpc_inference_port=9090
model_store=/archives
load_models=all
job_queue_size=7
models={\\
  "m": {"1.0": {"defaultVersion": true, "marName": "m.mar", "minWorkers": 2, "batchSize": "x"}}\\
}
enable_model_api=true
number_of_gpu=1
vmargs=-Xmx4g
colour=red
"""
    found = parse_server_properties(text, "config.properties", {})
    assert found.inference_address == ("0.0.0.0", 8443, True)
    assert (found.grpc_inference_port, found.job_queue_size) == (9090, 7)
    assert (found.model_store, found.load_models) == ("/archives", "all")
    assert found.models["m"]["1.0"].min_workers == 2
    assert found.enable_model_api
    assert found.ignored == (
        "'number_of_gpu': the device is a setting of the server",
        "'vmargs': there is no Java",
        "'colour': it is unknown",
        "'models', m 1.0: 'batchSize' is 'x', and not a whole number, 1 or more",
    )


def test_the_environment_overrides_only_if_the_file_says_so() -> None:
    environment = {"TS_JOB_QUEUE_SIZE": "5", "TS_NUMBER_OF_GPU": "1", "HOME_OF": "/mars"}
    text = b"job_queue_size=9\nmodel_store=$$HOME_OF$$/x\n"
    found = parse_server_properties(text, "c", environment)
    assert (found.job_queue_size, found.model_store) == (9, "/mars/x")
    found = parse_server_properties(text + b"enable_envvars_config=true", "c", environment)
    assert found.job_queue_size == 5
    assert found.ignored == ("'number_of_gpu': the device is a setting of the server",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("job_queue_size=many", "'job_queue_size' is 'many': write a whole number"),
        ("grpc_inference_port=70000", "from 0 to 65,535"),
        ("inference_address=unix:/tmp/x", "sockets of Unix are not listened on"),
        ("models={", "'models' is '{'"),
        ('models={"m": 1}', 'write {"MODEL"'),
        ("token_expiration_min=nan", "above 0"),
        ("allowed_urls=(", "'allowed_urls'"),
        ("model_snapshot=[]", 'write {"name"'),
        ('model_snapshot={"models": {"m": []}}', "'m' has no versions"),
        ('model_snapshot={"models": {"m": {"1": {"minWorkers": 1}}}}', "'m' has no 'marName'"),
        (r"cors_allowed_origin=a\r\nb: c", "one line, of Latin-1"),
        (r"cors_allowed_methods=\u4e00", "one line, of Latin-1"),
        (r"grpc_inference_address=\u0000", "a name or an address of this machine"),
        (r"inference_address=http://a\u0000b:80", "a name or an address of this machine"),
        (r"model_store=a\u0000b", "a path, which has no NUL"),
    ],
)
def test_values_that_cannot_be_read_are_named(line: str, reason: str) -> None:
    with pytest.raises(ServerPropertiesError) as raised:
        parse_server_properties(line.encode(), "config.properties", {})
    assert reason in str(raised.value)


def test_allowed_urls_come_from_the_environment_where_that_is_said() -> None:
    environment = {"TS_ALLOWED_URLS": "https://a/.*"}
    said = parse_server_properties(b"use_env_allowed_urls=true", "c", environment)
    assert said.allowed_urls == ("https://a/.*",)
    unsaid = parse_server_properties(b"allowed_urls=https://b/.*", "c", environment)
    assert unsaid.allowed_urls == ("https://b/.*",)


def test_a_snapshot_has_no_more_versions_than_a_start_registers() -> None:
    most = {str(one): {"marName": "m"} for one in range(MAX_SNAPSHOT_MODELS)}

    def parsed(versions: dict[str, dict[str, str]]) -> ServerProperties:
        text = json.dumps({"models": {"m": versions}})
        return parse_server_properties(f"model_snapshot={text}".encode(), "c", {})

    snapshot = parsed(most).snapshot
    assert snapshot is not None
    assert len(snapshot) == MAX_SNAPSHOT_MODELS
    with pytest.raises(ServerPropertiesError, match="it has 1,001 versions"):
        parsed(most | {"x": {"marName": "m"}})


def test_numbers_that_are_empty_are_the_defaults() -> None:
    text = b"default_workers_per_model=\njob_queue_size=\n"
    assert parse_server_properties(text, "c", {}) == ServerProperties()


def test_every_key_of_torchserve_is_followed_or_listed() -> None:
    text = "".join(f"{key}=\n" for key in KEYS)
    found = parse_server_properties(text.encode(), "c", {})
    assert not [one for one in found.ignored if "unknown" in one]


KEYS = [
    "async_logging",
    "blacklist_env_vars",
    "cpp_log_config",
    "cpu_launcher_args",
    "cpu_launcher_enable",
    "debug",
    "default_response_timeout",
    "default_service_handler",
    "default_startup_timeout",
    "default_workers_per_model",
    "disable_system_metrics",
    "disable_token_authorization",
    "enable_envvars_config",
    "decode_input_request",
    "enable_grpc_ssl",
    "enable_metrics_api",
    "enable_model_api",
    "grpc_inference_max_connection_age_grace_ms",
    "grpc_inference_max_connection_age_ms",
    "grpc_inference_port",
    "grpc_management_max_connection_age_grace_ms",
    "grpc_management_max_connection_age_ms",
    "grpc_management_port",
    "initial_distribution_port",
    "initial_worker_port",
    "install_py_dep_per_model",
    "io_ratio",
    "ipex_enable",
    "ipex_gpu_enable",
    "job_queue_size",
    "keystore",
    "keystore_pass",
    "keystore_type",
    "limit_max_image_pixels",
    "load_models",
    "max_request_size",
    "max_response_size",
    "metric_time_interval",
    "metrics_config",
    "metrics_mode",
    "model_metrics_auto_detect",
    "model_server_home",
    "model_snapshot",
    "model_store",
    "netty_client_threads",
    "number_of_gpu",
    "number_of_netty_threads",
    "prefer_direct_buffer",
    "preload_model",
    "private_key_file",
    "certificate_file",
    "service_envelope",
    "system_metrics_cmd",
    "ts_header_key_sequence_end",
    "ts_header_key_sequence_id",
    "ts_header_key_sequence_start",
    "ts_open_inference_protocol",
    "unregister_model_timeout",
    "use_env_allowed_urls",
    "use_native_io",
    "version",
    "vmargs",
    "workflow_store",
]
"""Keys of the ConfigManager of TorchServe 0.12, but for those that may not be empty."""


def test_port_zero_stays_zero() -> None:
    said = parse_server_properties(b"inference_address=http://127.0.0.1:0", "c", {})
    assert said.inference_address == ("127.0.0.1", 0, False)
