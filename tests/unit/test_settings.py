"""Settings from a command line: every field an option, lists item by item."""

import pytest
from typer.main import get_command

from flambeau.cli import app
from services.gateway.config import GatewayConfig
from services.inference.config import InferenceConfig
from services.settings import ConfigError, ServiceSettings, checked, command_line, settings_from
from services.standalone.config import ServerConfig
from services.trainer.config import TrainerConfig

QUEUE = "--queue=redis://here"


def test_a_setting_is_an_option_of_its_name() -> None:
    arguments = [QUEUE, "--http-port=0", "--access-log=true", "--request-timeout-s=1.5"]
    config = settings_from(arguments, GatewayConfig, "")
    assert (config.queue, config.http_port) == ("redis://here", 0)
    assert (config.access_log, config.request_timeout_s) == (True, 1.5)


def test_a_list_is_given_item_by_item() -> None:
    arguments = [QUEUE, "--model", "a", "--model", "b", "--preferred-batch-size=4"]
    config = settings_from(arguments, InferenceConfig, "")
    assert config.models == ("a", "b")
    assert config.preferred_batch_sizes == (4,)


def test_a_mapping_is_given_as_yaml() -> None:
    arguments = [QUEUE, "--model-settings={digits: {instances: 2}}"]
    assert settings_from(arguments, InferenceConfig, "").model_settings["digits"].instances == 2


def test_a_command_line_is_read_as_what_it_was_made_of() -> None:
    settings = {"queue": "redis://here", "models": ["a", "b"], "isolate": True, "threads": 3}
    config = settings_from(command_line(settings), InferenceConfig, "")
    assert (config.models, config.isolate, config.threads) == (("a", "b"), True, 3)


def test_a_name_is_a_name_whatever_it_looks_like() -> None:
    arguments = [QUEUE, "--model=123", "--model=no", "--host=1e3"]
    config = settings_from(arguments, InferenceConfig, "")
    assert (config.models, config.host) == (("123", "no"), "1e3")


def test_the_help_says_what_each_option_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        settings_from(["--help"], GatewayConfig, "")
    text = " ".join(capsys.readouterr().out.split())
    assert "URL of the Redis or Valkey that the workers read from." in text


def test_the_help_says_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        settings_from(["--help"], InferenceConfig, "")
    text = " ".join(capsys.readouterr().out.split())
    assert "Lowest level that is logged. (default: info)" in text
    assert "Run each backend in its own worker process" in text
    assert "tenth of a millisecond per batch. (default: false)" in text
    assert "Redis or Valkey that the gateways write to. Required." in text
    assert "Address that the metrics port listens on" in text
    assert "Empty for those of `flambeau keys trust`. --signature" in text


@pytest.mark.parametrize("kind", [GatewayConfig, InferenceConfig, ServerConfig, TrainerConfig])
def test_every_setting_has_a_help(kind: type[ServiceSettings]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


def test_the_options_of_serve_show_the_defaults_of_the_settings() -> None:
    fields = ServerConfig.model_fields
    shown = {
        parameter.name: parameter.show_default
        for parameter in vars(get_command(app))["commands"]["serve"].params
    }
    names = ("store", "host", "http_port", "grpc_port", "metrics_port")
    assert {name: shown[name] for name in names} == {
        name: str(fields[name].default) for name in names
    }


def test_a_bad_value_is_named() -> None:
    with pytest.raises(ConfigError, match="'http_port' is 'many'"):
        settings_from([QUEUE, "--http-port=many"], GatewayConfig, "")


@pytest.mark.parametrize("arguments", [["--htp-port=1"], [QUEUE, "--htp-port", "1"]])
def test_an_unknown_option_stops_the_start_and_names_the_nearest(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"'--htp-port' \(did you mean '--http-port'\?\)"):
        settings_from(arguments, GatewayConfig, "")


def test_an_option_without_a_value_is_named() -> None:
    with pytest.raises(ConfigError, match="--queue: expected one argument"):
        settings_from(["--queue"], GatewayConfig, "")


def test_the_queue_must_be_named() -> None:
    with pytest.raises(ConfigError, match="--queue is required: URL of the Redis"):
        settings_from([], GatewayConfig, "")


def test_one_kept_artifact_needs_no_list() -> None:
    settings = {"keep_artifacts": "all", "model_settings": {"a": {"keep_artifacts": "exact"}}}
    found = checked(ServerConfig, {"store": "/store", **settings})
    assert found.keep_artifacts == ("all",)
    assert found.model_settings["a"].keep_artifacts == ("exact",)
    with pytest.raises(ConfigError, match="'keep_artifacts' is 3: write a list, as in \\[3\\]"):
        checked(ServerConfig, {"store": "/store", "keep_artifacts": 3})


@pytest.mark.parametrize("kind", [GatewayConfig, TrainerConfig])
def test_one_port_for_two_is_refused_by_both_names(kind: type[ServiceSettings]) -> None:
    options = [QUEUE] if kind is GatewayConfig else []
    both = [*options, "--http-port=9000", "--metrics-port=9000"]
    with pytest.raises(ConfigError, match="http_port and metrics_port are both 9000"):
        settings_from(both, kind, "")
    assert settings_from([*options, "--http-port=0", "--metrics-port=0"], kind, "").ports()


def test_ports_are_told_by_setting() -> None:
    assert checked(ServerConfig, {}).ports() == {
        "grpc_port": 8001,
        "http_port": 8000,
        "metrics_port": 8002,
    }
