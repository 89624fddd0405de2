"""TorchServe's `config.properties` and its variables of the environment."""

import pytest

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
        ("inference_address=unix:/tmp/x", "write an address such as"),
        ("models={", "'models' is '{'"),
        ('models={"m": 1}', 'write {"MODEL"'),
        ("token_expiration_min=nan", "above 0"),
        ("allowed_urls=(", "'allowed_urls'"),
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


def test_port_zero_stays_zero() -> None:
    said = parse_server_properties(b"inference_address=http://127.0.0.1:0", "c", {})
    assert said.inference_address == ("127.0.0.1", 0, False)
